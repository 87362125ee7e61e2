"""The script of /docs' login form, run by Node against an agent that asks for credentials."""

from __future__ import annotations

import json
import pathlib
import shutil

from fake_broker import FakeCluster
from http_access import MemoryAccess
from http_fixtures import running

from shoal.agent.http.docs.login_form import SCRIPT
from tests.clients.generating import HERE, run


async def told(directory: pathlib.Path, url: str, credential: str) -> list[str]:
    """The form's words after "Log in", how GET /v1/session is proven then, its words after "Log out",
    and the cookie that is left."""
    shutil.copy(HERE / "browser.js", directory)
    out = await run("node", "browser.js", SCRIPT, url, credential, directory=directory)
    return [json.loads(line) for line in out.splitlines()]


async def test_a_token_becomes_a_session_and_ends(tmp_path: pathlib.Path) -> None:
    """A right token; a wrong one, an expired one, one that no header takes; and no agent. All is told."""
    access = MemoryAccess()
    access.give("right", "cluster=describe")
    access.give("old", expires_ms=1_000_000_000_000)
    async with running(FakeCluster().add("one"), None, access) as agent:
        url = f"http://127.0.0.1:{agent.port}"
        login, proof, logout, cookie = await told(tmp_path, url, " right\n")
        assert login.startswith("Logged in as of-right until 20")
        assert (proof, logout, cookie) == ("session", "Logged out.", "")
        for credential in ("wrong", "old"):
            login, proof, logout, cookie = await told(tmp_path, url, credential)
            assert login.endswith("(unauthenticated)")
            assert (proof, cookie) == (401, "")
            assert logout.endswith("(unauthenticated)")
        for credential in ("wr\u2026ng", "a token", "a\x01b"):
            login = (await told(tmp_path, url, credential))[0]
            assert login.startswith("This is no token and no JWT: ")
    login = (await told(tmp_path, url, "right"))[0]
    assert login.startswith("Not done: ")
