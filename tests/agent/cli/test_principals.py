"""`shoal secure principal | role | token` against an agent: as tables, as JSON, and refused in a line."""

from __future__ import annotations

import asyncio
import json

import pytest
from http_fixtures import one_agent

from shoal.agent.cli.main import main
from shoal.agent.security.tokens import parse_token


class Shoal:
    """Runs commands in this process, against one agent."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys
        self.said = ""

    async def __call__(self, *words: str, code: int = 0) -> str:
        """Its standard output; `said`: the other one."""
        ended = await asyncio.to_thread(main, ["secure", *words, "--agent", self._url])
        shown = self._capsys.readouterr()
        self.said = shown.err
        assert ended == code, shown
        return shown.out


async def test_principals_roles_and_tokens(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """From the first to the last. The token is the only thing on standard output, and no list has it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    async with one_agent() as agent:
        shoal = Shoal(agent.broker.url, capsys)
        await shoal("role", "put", "clerk", "--rule", "topic:orders*=describe,read")
        assert shoal.said == "made role clerk\n"
        await shoal("principal", "put", "bob", "--role", "clerk", "--rule", "topic:a=write")
        assert shoal.said == "made principal bob\n"
        await shoal("principal", "put", "bob", "--role", "clerk")
        assert shoal.said == "changed principal bob\n"
        token = parse_token((await shoal("token", "create", "bob", "--expires-in", "1h")).strip())
        assert shoal.said.startswith(f"token {token.id} of bob, good until 2")
        lists = [
            await shoal(*words)
            for words in (
                ("token", "list"),
                ("principal", "list"),
                ("principal", "show", "bob"),
                ("role", "list"),
            )
        ]
        assert [line.split()[:3] for line in lists[0].splitlines()] == [
            ["TOKEN", "PRINCIPAL", "EXPIRES"], [token.id, "bob", json.loads(
                await shoal("token", "list", "--json"))["tokens"][0]["expires_at"]],
        ]  # fmt: skip
        assert [line.split() for line in lists[1].splitlines()[1:]] == [["bob", "clerk", "-", "1"]]
        assert "clerk" in lists[2]
        assert [line.split()[0] for line in lists[3].splitlines()] == [
            "ROLE", "viewer", "operator", "admin", "clerk",
        ]  # fmt: skip
        assert "topic:x*=describe,write" in await shoal("role", "show", "producer:x*")
        for text in (*lists, *[await shoal(*words, "--json") for words in (("principal", "list"),)]):
            assert token.reveal() not in text
        await shoal("role", "delete", "clerk", "--yes", code=1)
        assert "principals with the role clerk" in shoal.said
        await shoal("token", "revoke", token.id)
        await shoal("token", "revoke", token.id, code=1)
        assert "shoal secure token list" in shoal.said
        await shoal("principal", "delete", "bob", "--yes")
        await shoal("role", "delete", "clerk", "--yes")
        assert json.loads(await shoal("principal", "list", "--json")) == {"principals": []}
        for words in (
            ("role", "put", "clerk", "--rule", "topic:a*b=read"),
            ("principal", "put", "a b"),
            ("token", "create", "nobody"),
            ("principal", "show", "nobody"),
        ):
            await shoal(*words, code=1)
            assert len(shoal.said.splitlines()) == 1


async def test_a_token_is_revoked_by_another_one(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The option of credentials is called --token as everywhere, beside the argument that names one."""
    home = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    async with one_agent() as agent:
        shoal = Shoal(agent.broker.url, capsys)
        await shoal("principal", "put", "bob")
        token = parse_token((await shoal("token", "create", "bob")).strip())
        (home / "token").touch(mode=0o600)
        (home / "token").write_text(token.reveal())
        await shoal("token", "revoke", token.reveal(), code=2)
        assert "that is a whole token" in shoal.said
        assert token.reveal() not in shoal.said
        await shoal("token", "revoke", token.id, "--token", f"@{home / 'token'}")
        assert shoal.said == f"token {token.id} is revoked\n"
        assert token.reveal() not in shoal.said
