"""The bad requests of test_bad_input.py at a real agent, with a log, a catalog and leaders of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents import Running, agents_in

from tests.agent.http.groups.test_bad_input import BAD, REQUESTS

VOLATILE = {"lag_seconds", "consumers"}


async def kept(agent: Running) -> list[Any]:
    """Topics, groups and their numbers, but for those that time alone changes."""
    _, topics = await agent.call("GET", "/v1/topics")
    found: list[Any] = [sorted(topic["name"] for topic in topics["topics"])]
    for name in ("t", "other"):
        _, listed = await agent.call("GET", f"/v1/topics/{name}/groups")
        for group in listed["groups"]:
            _, document = await agent.call("GET", f"/v1/topics/{name}/groups/{group['name']}")
            parts = [document.pop("totals"), *document.pop("partitions")]
            numbers = [{key: part[key] for key in part.keys() - VOLATILE} for part in parts]
            found.append((document, numbers))
    return found


async def test_every_bad_request_is_refused_by_a_real_agent_and_changes_nothing(tmp_path: Path) -> None:
    """By the codes that the table has."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("one")
        for name, partitions in (("t", 2), ("other", 1)):
            assert (await agent.call("PUT", f"/v1/topics/{name}", {"partitions": partitions}))[0] == 201
        for path, body in (("t/groups/g", {}), ("t/groups/x", {"mode": "exclusive"}), ("other/groups/g", {})):
            status, said = await agent.served("PUT", f"/v1/topics/{path}", body)
            assert status in (200, 201), said
        for partition in range(2):
            records = {"records": [{"value": f"{partition}-{number}"} for number in range(10)]}
            path = f"/v1/topics/t/partitions/{partition}/records"
            assert (await agent.call("POST", path, records))[0] == 200
        before = await kept(agent)
        assert len(before) == 4
        more = {"Content-Type": "application/json"}
        for method, path, body, code, words in REQUESTS:
            status, problem = await agent.call(method, path, body, more if isinstance(body, bytes) else None)
            where = (method, path[:80], problem)
            assert status >= 400, where
            assert (problem["code"], problem["definite"]) == (code, True), where
            # A front door's words are the same before any broker; those of the catalog are its own.
            assert words in problem["detail"] if code == BAD else problem["detail"], where
        assert await kept(agent) == before
