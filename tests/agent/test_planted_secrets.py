"""Secrets are planted in a whole agent and in the commands that ask it; then everything they say is searched.

A token, a revoked one, the first one, a JWT, the gossip key,
the agent's private key, and texts where somebody
put a token into the wrong place. Searched are the agent's log at its lowest level, answers, metrics, events,
the audit, the output of commands, and the command lines of all processes while they run.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest
from command_line import Ran, finish, run, start
from http_access import Wire
from jwt_issuer import AUDIENCE, ISSUER, claims, key_set, signed

from shoal.agent.cli.main import main

PATIENCE_S = 90.0
PATHS = ("metrics?partitions=true", "v1/agent", "v1/members", "v1/topics", "v1/principals",
"v1/principals/bob",
         "v1/roles", "v1/keys", "v1/routes?topic=orders", "openapi.json", "docs",
         "v1/topics/orders")  # fmt: skip
COMMANDS = (
    ("status", "--json"),
    ("keys", "list"),
    ("audit", "--json"),
    ("secure", "principal", "show", "bob"),
)


class House:
    """An agent as `shoal secure init` makes one, in a process of its own."""

    def __init__(self, directory: pathlib.Path, url: str, first: str) -> None:
        self.directory = directory
        self.url = url
        self.secrets: dict[str, str] = {"the first token": first}
        self.said: dict[str, str] = {}
        """Whatever has been said, by where."""

    async def command(self, *words: str, token: str = "token") -> Ran:
        """A command with its token in a file."""
        more = ("--ca", "secrets/ca.crt", "--token", f"@{self.directory / token}")
        ran = await run(*words, *more, agent=self.url)
        self.said[f"{' '.join(words)} ({len(self.said)})"] = ran.stdout + ran.stderr
        return ran

    async def made(self, principal: str, *grants: str, token: str = "token") -> str:
        """A token, which is the one thing that its command shows."""
        assert (await self.command("secure", "principal", "put", principal, *grants, token=token)).code == 0
        ran = await self.command("secure", "token", "create", principal, token=token)
        assert ran.code == 0, ran
        self.said.popitem()
        self.said[f"stderr of a token for {principal}"] = ran.stderr
        made = ran.stdout.strip()
        self.secrets[f"the token of {principal}"] = made
        return made

    def keep(self, name: str, text: str) -> None:
        (self.directory / name).touch(mode=0o600)
        (self.directory / name).write_text(text)


@asynccontextmanager
async def housed(directory: pathlib.Path, first: str) -> AsyncIterator[House]:
    """Its log is read when it has ended. It takes a port that nobody has, and writes down which."""
    configuration = directory / "secrets/hosts/a/shoal.toml"
    (directory / "keys.json").write_bytes(key_set())
    text = configuration.read_text()
    settings = {
        "http_port": 0, "gossip_port": 0, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE,
        "disk": "threads",
        "jwt_keys": str(directory / "keys.json"), "log_level": "debug", "mdns": False, "expect": 1,
        "data": str(directory / "data"),
    }  # fmt: skip
    kept = [line for line in text.splitlines() if line.partition(" = ")[0] not in settings]
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    configuration.write_text("\n".join((*kept, *lines, "")))
    house = House(directory, "", first)
    agent = await start("agent", "--config", str(configuration))
    ended = asyncio.create_task(finish(agent, None, 600.0))
    try:
        await ready(house, ended)
        yield house
    finally:
        if agent.returncode is None:
            with suppress(ProcessLookupError):
                agent.send_signal(signal.SIGTERM)
        out, err = await ended
    house.said["the agent's log"] = (out + err).decode()


async def ready(house: House, ended: asyncio.Task[Any]) -> None:
    context = ssl.create_default_context(cafile="secrets/ca.crt")
    deadline = time.monotonic() + PATIENCE_S
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        while time.monotonic() < deadline and not ended.done():
            with suppress(aiohttp.ClientError, FileNotFoundError):
                house.url = json.loads((house.directory / "data/endpoints.json").read_text())["url"]
                async with session.get(f"{house.url}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
    raise AssertionError(ended.result() if ended.done() else "the agent is not ready")


def command_lines() -> str:
    """Of all processes that are there."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return "\n".join(found)


async def watch_processes(house: House) -> None:
    """Look again and again, until cancelled."""
    while True:
        text = await asyncio.to_thread(command_lines)
        for name, secret in house.secrets.items():
            if secret in text:
                house.said[f"a process list with {name}"] = text
        await asyncio.sleep(0.05)


async def ask_in_wrong_ways(house: House, token: str, jwt: str) -> None:
    """Tokens in paths, queries, bodies, other headers, and in what is no request."""
    port = int(house.url.rpartition(":")[2])
    context = ssl.create_default_context(cafile="secrets/ca.crt")
    good = ("Authorization", f"Bearer {token}")
    body = json.dumps({"rules": [token], "expires_in": token}).encode()
    asked: list[tuple[str, list[tuple[str, str]], bytes]] = [
        (f"GET /v1/topics/orders?access_token={token}", [], b""),
        (f"GET /v1/topics/orders?token={jwt}", [good], b""),
        (f"DELETE /v1/tokens/{token}", [], b""),
        (f"POST /v1/principals/{token}/tokens", [], b"{}"),
        (f"GET /v1/{token}", [], b""),
        ("GET /v1/topics/orders", [("Authorization", f"Basic {token}")], b""),
        ("GET /v1/topics/orders", [("Authorization", token)], b""),
        ("GET /v1/topics/orders", [("Authorization", f"Bearer {token}x")], b""),
        ("GET /v1/topics/orders", [("Authorization", f"Bearer {jwt}x")], b""),
        ("GET /v1/topics/orders", [good, ("Authorization", f"Bearer {jwt}")], b""),
        ("GET /v1/topics/orders", [("Authorization\r", f"Bearer {token}")], b""),
        ("GET /v1/topics/orders", [("Cookie", f"token={token}")], b""),
        ("GET /v1/topics/orders", [("Shoal-Principal", token)], b""),
        ("GET /v1/topics/orders", [good, ("X-Long", token * 200)], b""),
        ("PUT /v1/principals/eve", [good], body),
        (f"{token} /v1/topics", [], b""),
    ]
    for number, (line, headers, sent) in enumerate(asked):
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
        reply = await wire.ask(line, headers, sent)
        # An answer may name what stood in the path or in the body: its own sender reads it, and nobody else.
        if token not in line and jwt not in line and not sent:
            house.said[f"the answer to {number}"] = reply.head + reply.body.decode()
        assert reply.status >= 400, (line, reply)
        wire.close()


async def gather_answers(house: House, token: str) -> None:
    """What administrators may read."""
    context = ssl.create_default_context(cafile="secrets/ca.crt")
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), headers=headers) as session:
        for path in PATHS:
            async with session.get(f"{house.url}/{path}") as answer:
                house.said[path] = await answer.text()
                assert answer.status == 200, (path, house.said[path])
        async with session.get(f"{house.url}/v1/events") as answer:
            house.said["events"] = (await answer.content.readuntil(b"\n\n")).decode()


@pytest.mark.slow
@pytest.mark.cold_start
async def test_planted_secrets_show_nowhere(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor in part: a run of 20 characters of one is found, too. Names of tokens are no secrets."""
    monkeypatch.chdir(tmp_path)
    assert main(["secure", "init", "--cluster", "fish", "--name", "a", "--address", "127.0.0.1"]) == 0
    first = capsys.readouterr().out.strip()
    async with housed(tmp_path, first) as house:
        watching = asyncio.create_task(watch_processes(house))
        house.keep("first", first)
        admin = await house.made("ann", "--role", "admin", token="first")
        house.keep("token", admin)
        assert (await house.command("topic", "create", "orders", "--partitions", "1")).code == 0
        bobs = await house.made("bob", "--role", "producer:orders")
        revoked = await house.made("eve", "--role", "viewer")
        house.keep("revoked", revoked)
        assert (await house.command("secure", "token", "revoke", revoked.split("_")[1])).code == 0
        assert (await house.command("status", token="revoked")).code != 0
        jwt = house.secrets["a JWT"] = signed(claims(int(time.time()), sub="bob"))
        hosts = tmp_path / "secrets/hosts/a"
        house.secrets["the gossip key"] = (hosts / "gossip.key").read_text().strip()
        house.secrets["the agent's key"] = "".join((hosts / "agent.key").read_text().splitlines()[1:-1])
        house.keep("spare.key", "c3BhcmUgZ29zc2lwIGtleSBvZiAzMiBieXRlcyBoZXJl")
        house.secrets["a spare gossip key"] = (tmp_path / "spare.key").read_text()
        for change in ("install", "use", "remove"):
            await house.command("keys", change, "@spare.key")
        await ask_in_wrong_ways(house, bobs, jwt)
        await gather_answers(house, admin)
        for words in COMMANDS:
            assert (await house.command(*words)).code == 0
        async with asyncio.timeout(PATIENCE_S):  # audit records are on their way for a while
            while "describeTopic" not in (await house.command("audit", "--json")).stdout:
                pass
        configuration = str(hosts / "shoal.toml")
        for words in (
            ("doctor", "--security", "--config", configuration),
            ("config", "show", "--config", configuration),
        ):
            ran = await run(*words)
            house.said[" ".join(words)] = ran.stdout + ran.stderr
            assert ran.stdout
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert '"level"' in house.said["the agent's log"]
    assert "debug" in house.said["the agent's log"]
    found = [
        (name, place)
        for name, secret in house.secrets.items()
        for place, text in house.said.items()
        if any(part in text for part in parts(secret))
    ]
    assert found == []
    assert stored(tmp_path / "data", house.secrets) == {"gossip-keyring.json"}


def parts(secret: str) -> list[str]:
    """Runs of it; of a token behind its name, of a JWT behind its head, which all of its issuer's have."""
    body = secret[15:] if secret.startswith("shoal_") else secret.partition(".")[2] or secret
    return [body[at : at + 20] for at in range(0, max(1, len(body) - 19), 10)]


def stored(directory: pathlib.Path, secrets: dict[str, str]) -> set[str]:
    """Files of the agent's that have one: its keyring, which its user alone may read."""
    found = {
        path
        for path in directory.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets.values())
    }
    assert [path for path in found if os.stat(path).st_mode & 0o077] == []
    return {path.name for path in found}
