"""`shoal audit`: lines for people with aligned columns, records as they are for programs."""

from __future__ import annotations

import json

import command_line
from fake_broker import FakeBroker
from http_fixtures import one_agent

from shoal.agent.cli.records.audit_lines import line_of, shown
from shoal.agent.cli.terminal.options import Output
from shoal.agent.security.access import Identity, Proof
from shoal.agent.security.audit import AuditTrail, happening
from shoal.agent.submission import Submission
from shoal.format.records import RecordColumns

NOW_MS = 1_764_300_000_000


def records() -> list[bytes]:
    trail = AuditTrail("herring")
    ann, nobody = Identity("ann", Proof.TOKEN), Identity("anonymous", Proof.NONE)
    trail.changed(happening(ann, "10.0.0.7", "createTopic", "topic:orders", "done"), NOW_MS)
    for _ in range(103):
        trail.refused(happening(nobody, "10.0.0.66", "readMerged", "topic:x", "unauthenticated"), NOW_MS)
    return [value for value in trail.take(NOW_MS + 5_000, 1_000) if b"refusal" not in value]


async def stored(broker: FakeBroker, values: list[bytes]) -> None:
    """As agents write them."""
    await broker.create_topic("audit-of-test", None, 1_000, None)
    topic = broker.cluster.topics.pop("audit-of-test")
    broker.cluster.topics["_audit"] = topic
    columns = RecordColumns([None] * len(values), [None] * len(values), [*values], [None] * len(values))
    await broker.append(broker.topic("_audit"), 0, Submission.of(columns, timeout_ms=1_000))


async def test_records_are_shown_as_lines_and_as_json() -> None:
    """With a head for people; the number of refusals that were left out stands there, too."""
    async with one_agent() as agent:

        async def run(*words: str, code: int = 0) -> tuple[str, str]:
            ended = await command_line.run("audit", *words, agent=agent.broker.url)
            assert ended.code == code, ended
            return ended.stdout, ended.stderr

        assert "there is no audit yet" in (await run(code=1))[1]
        assert "--since" in (await run("--since", "yesterday", code=2))[1]
        await stored(agent.broker, records())
        head, change, left_out = (await run())[0].splitlines()
        assert head.split() == ["TIME", "KIND", "PRINCIPAL", "PROOF", "FROM", "OPERATION", "OUTCOME", "ON"]
        assert change.split()[1:] == [
            "change",
            "ann",
            "token",
            "10.0.0.7",
            "createTopic",
            "done",
            "topic:orders",
        ]
        assert head.index("FROM") == change.index("10.0.0.7") == left_out.index("10.0.0.66")
        assert left_out.endswith("3 more refusals are not shown")
        found = [json.loads(line) for line in (await run("--json", "--since", "1h"))[0].splitlines()]
        assert [record["kind"] for record in found] == ["change", "left-out"]
        assert found[1]["count"] == 3


def test_nothing_of_a_record_moves_the_cursor() -> None:
    """Names of principals come from whoever may make them; a record of another form is shown as it is."""
    assert "\x1b" not in line_of({"kind": "change", "principal": "\x1b[2Jann"})
    assert "\x1b" not in shown(b"\x1b[2J", Output.TABLE)
    assert shown(b"[1]", Output.TABLE) == "'[1]'"
    assert shown(b'{"kind":"new"}', Output.JSON) == '{"kind":"new"}'
