"""`shoal partition recover` and its route: told twice, or nothing happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from command_line import assert_one_line, run
from http_fixtures import one_agent

from shoal.agent.cli import partition as module
from shoal.agent.cli.main import main
from shoal.agent.cli.partition import warning

PREVIEW = {
    "topic": "orders",
    "partition": 3,
    "log_end_offset": 50,
    "entries": 70,
    "committed_entries": 66,
    "lost": [{"id": "b" * 32, "name": "sardine"}, {"id": "c" * 32, "name": "anchovy"}],
    "refusal": None,
}


async def asked(agent: Any, body: dict[str, Any]) -> Any:
    return await agent.post("/v1/agent/recover", json.dumps(body).encode(), media="application/json")


async def test_it_takes_unsafe_and_a_second_yes() -> None:
    """Without either nothing is asked of the agent but what would happen; with both it is done once."""
    async with one_agent() as agent:
        url = f"http://127.0.0.1:{agent.port}"
        command = ("partition", "recover", "orders", "3")
        assert_one_line(await run(*command, agent=url), "may lose acknowledged records", "--unsafe")
        ran = await run(*command, "--unsafe", agent=url)
        assert ran.code == 2
        assert "sardine" in ran.stderr
        assert "--yes-i-accept-data-loss" in ran.stderr.strip().splitlines()[-1]
        assert agent.broker.recovered == []
        ran = await run(*command, "--unsafe", "--yes-i-accept-data-loss", "--output", "json", agent=url)
        assert ran.code == 0, ran.stderr
        assert '"log_end_offset": 5' in ran.stdout
        assert agent.broker.recovered == [("orders", 3)]


async def test_a_refusal_is_told_as_one_line() -> None:
    """The agent's reason, and nothing is done."""
    async with one_agent() as agent:
        agent.broker.recovery_refusal = "2 of 3 voters answer"
        url = f"http://127.0.0.1:{agent.port}"
        flags = ("--unsafe", "--yes-i-accept-data-loss")
        assert_one_line(await run("partition", "recover", "orders", "3", *flags, agent=url), "2 of 3 voters")
        body = {"topic": "orders", "partition": 3, "accept_data_loss": True}
        (await agent.post("/v1/agent/recover", json.dumps(body).encode(), media="application/json")).problem(
            "recovery-refused"
        )
        assert agent.broker.recovered == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topic": "orders", "partition": 3},
        {"topic": "orders", "partition": 3, "accept_data_loss": "yes"},
        {"topic": "orders", "partition": True, "accept_data_loss": True},
        {"topic": 5, "partition": 3, "accept_data_loss": True},
        {"topic": "orders", "partition": 3, "accept_data_loss": True, "more": 1},
    ],
)
async def test_the_route_wants_the_words(body: dict[str, Any]) -> None:
    """What does not say that data may be lost is not understood."""
    async with one_agent() as agent:
        (await agent.post("/v1/agent/recover", json.dumps(body).encode(), media="application/json")).problem(
            "bad-request"
        )
        (await agent.get("/v1/agent/recover")).problem("bad-request")
        (await agent.get("/v1/agent/recover?topic=orders&partition=x")).problem("unknown-partition")
        assert agent.broker.recovered == []


def test_what_may_be_lost_is_said() -> None:
    """Who does not answer, where the survivor ends, and what begins to count."""
    text = "\n".join(warning(PREVIEW))
    for word in ("orders/3", "sardine, anchovy", "offset 50", "count from now on: 4", "stop here"):
        assert word in text


@pytest.mark.parametrize(("typed", "calls"), [("orders/3", 2), ("orders/2", 1), ("yes", 1)])
def test_on_a_terminal_the_partition_is_typed(
    typed: str, calls: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name, not a y: only then is it carried out."""
    asked: list[object] = []
    monkeypatch.setattr(module, "with_admin", lambda _agent, work: asked.append(work) or PREVIEW)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr(typer, "prompt", lambda *_args, **_options: typed)
    code = main(["partition", "recover", "orders", "3", "--unsafe"])
    assert len(asked) == calls
    assert (code == 0) == (calls == 2)
    assert "sardine" in capsys.readouterr().err
