"""Watches of tables: rows, `current`, then every change once, resumed at any agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_fixtures import EVENTS, Agent, Event, events_of, stream, take, two_agents, until_free

from shoal.agent.http.tables import watch as watch_module

TABLE = "/v1/tables/t"


async def put(agent: Agent, key: str, value: bytes = b"v") -> None:
    answer = await agent.request("PUT", f"{TABLE}/{key}", value)
    assert answer.status == 200, answer.body


async def delete(agent: Agent, key: str) -> None:
    assert (await agent.request("DELETE", f"{TABLE}/{key}")).status == 200


def told(events: list[Event]) -> list[tuple[str, Any, Any]]:
    return [(kind, data.get("key"), data.get("value")) for _, kind, data in events]


def apply(table: dict[str, str], events: list[Event]) -> None:
    """What a reader does."""
    for _, kind, data in events:
        if kind in ("row", "change"):
            table.pop(data["key"], None)
            if data["value"] is not None:
                table[data["key"]] = data["value"]


async def until_current(events: AsyncIterator[Event]) -> list[Event]:
    found: list[Event] = []
    while not found or found[-1][1] != "current":
        found += await take(events, 1)
    return found


@pytest.mark.parametrize("partitions", [1, 3])
async def test_rows_then_current_then_changes(partitions: int) -> None:
    """At an agent that leads and at one that does not; a deletion has no value; only changes have ids."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", partitions, leader=second.broker.agent_id, kind="table")
        for key in ("b", "a", "c", "gone"):
            await put(first, key, b"old")
        await delete(first, "gone")
        for agent in (first, second):
            async with stream(agent, path=TABLE) as events:
                contents = await until_current(events)
                rows = [("row", key, "old") for key in ("a", "b", "c")]
                assert told(contents) == [*rows, ("current", None, None)]
                assert [event_id for event_id, _, _ in contents[:-1]] == [None] * 3
                assert contents[-1][0] == contents[-1][2]["as_of"]
                await put(second, "a", b"new")
                await delete(first, "b")
                await put(first, "b", b"old")
                await put(first, "a", b"old")
                changes = await take(events, 4)
                assert sorted(told(changes), key=str) == sorted(
                    [
                        ("change", "a", "new"),
                        ("change", "b", None),
                        ("change", "b", "old"),
                        ("change", "a", "old"),
                    ],
                    key=str,
                )
                assert all(event_id is not None for event_id, _, _ in changes)
                per_key = [data["value"] for _, _, data in changes if data["key"] == "a"]
                assert per_key == ["new", "old"]
        await until_free(first, second)


async def test_an_empty_table_is_current_at_once() -> None:
    """And tells its first row."""
    async with two_agents() as (first, _):
        first.broker.cluster.create("t", 2, kind="table")
        async with stream(first, path=TABLE) as events:
            assert (await take(events, 1))[0] == ("0:0,1:0", "current", {"as_of": "0:0,1:0"})
            await put(first, "k")
            assert told(await take(events, 1)) == [("change", "k", "v")]


async def test_changes_between_two_pages_come_before_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and changes up to `current` are the table at that cut, whatever was changed while they came."""
    monkeypatch.setattr(watch_module, "PAGE_ROWS", 3)
    async with two_agents() as (first, second):
        cluster = first.broker.cluster
        cluster.create("t", 2, leader=second.broker.agent_id, kind="table")
        for number in range(10):
            await put(second, f"k{number}", b"old")
        scan, pages = second.broker.scan_rows, 0

        async def changing(*arguments: Any, **named: Any) -> Any:
            nonlocal pages
            page = await scan(*arguments, **named)
            pages += 1
            if pages <= 6:
                await put(second, "k0", b"%d" % pages)
                await put(second, f"k9{pages}", b"added")
                await delete(second, f"k{pages}")
            return page

        monkeypatch.setattr(second.broker, "scan_rows", changing)
        async with stream(first, path=TABLE) as events:
            contents = await until_current(events)
            table: dict[str, str] = {}
            apply(table, contents)
            assert pages >= 6
            assert "change" in {kind for _, kind, _ in contents}
            assert {event_id for event_id, kind, _ in contents if kind != "current"} == {None}
            whole = (await first.get(f"{TABLE}?limit=100")).json
            assert contents[-1][2]["as_of"] == whole["as_of"]
            assert table == {row["key"]: row["value"] for row in whole["rows"]}


async def test_a_watch_goes_on_at_any_agent() -> None:
    """Behind the last id, without rows; each change once. An id of the contents is none."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", 3, leader=second.broker.agent_id, kind="table")
        for number in range(5):
            await put(first, f"k{number}")
        async with stream(first, path=TABLE) as events:
            cursor = (await until_current(events))[-1][0]
        for number in range(6):
            await put(first, f"new{number}")
        seen = []
        for agent in (second, first, second):
            async with stream(agent, path=TABLE, Last_Event_ID=cursor or "") as events:
                found = await take(events, 2)
                seen += told(found)
                cursor = found[-1][0]
        assert sorted(seen) == sorted(("change", f"new{number}", "v") for number in range(6))


async def test_only_keys_that_begin_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others pass unseen, and yet the cursor follows them in the end."""
    monkeypatch.setattr(watch_module, "PASSED_MAX", 20)
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", 2, leader=second.broker.agent_id, kind="table")
        for key in ("a/1", "b/1", "a/2"):
            await put(first, key)
        async with stream(first, "?prefix=a/", path=TABLE) as events:
            assert told((await until_current(events))[:-1]) == [("row", "a/1", "v"), ("row", "a/2", "v")]
            for key in ("b/1", "a/1", "c", "a/3", "b/1"):
                await put(first, key, b"w")
            changes = await take(events, 2)
            assert sorted(told(changes)) == [("change", "a/1", "w"), ("change", "a/3", "w")]
            places = [data["offset"] for _, _, data in changes]
            records = [
                (await first.get(f"/v1/topics/t/partitions/{data['partition']}/records?offset={place}")).json
                for place, (_, _, data) in zip(places, changes, strict=True)
            ]
            assert [one["records"][0]["key"] for one in records] == [data["key"] for _, _, data in changes]
            for _ in range(25):
                await put(first, "b/9")
            event_id, kind, data = (await take(events, 1))[0]
            assert (kind, data) == ("current", {"as_of": event_id})
            assert event_id != changes[-1][0]


async def test_behind_the_beginning_of_the_log() -> None:
    """410 tells the reader to begin again; a stream that has begun says so in an event."""
    async with two_agents() as (first, second):
        cluster = first.broker.cluster
        cluster.create("t", leader=second.broker.agent_id, kind="table")
        await put(first, "k")
        await put(first, "k")
        await second.broker.trim(cluster.topics["t"], 0, cluster_end(cluster), 1_000)
        refused = await first.get(TABLE, Accept=EVENTS, Last_Event_ID="0:1")
        assert refused.problem("trimmed")["log_start_offset"] == 2
        (await first.get(TABLE, Accept=EVENTS, Last_Event_ID="0:9")).problem("beyond-end")


def cluster_end(cluster: Any) -> Any:
    return cluster.logs["t", 0].end


@pytest.mark.parametrize(
    ("query", "last", "code"),
    [
        ("?limit=1", "", "bad-request"), ("?after=a", "", "bad-request"), ("?partition=0", "", "bad-request"),
        ("?consistency=local", "", "bad-request"), ("?wait=1s", "", "bad-request"),
        ("?view=value", "", "bad-request"), ("", "0:1", "bad-request"), ("", "17", "bad-request"),
        ("", "0:1,5:1", "unknown-partition"), ("?prefix=a&prefix_base64=YQ==", "", "bad-request"),
    ],
)  # fmt: skip
async def test_bad_watches(query: str, last: str, code: str) -> None:
    """What belongs to pages, and ids of other streams."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", 2, kind="table")
        (await first.get(f"{TABLE}{query}", Accept=EVENTS, Last_Event_ID=last)).problem(code)
        await until_free(first, second)


async def test_an_agent_that_stops_says_so_and_another_goes_on() -> None:
    """The last word has no id, so that the reader keeps its own."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id, kind="table")
        await put(first, "k")
        headers = {"Accept": EVENTS}
        url = f"http://127.0.0.1:{first.port}{TABLE}"
        async with first.session.get(url, headers=headers) as response:
            events = events_of(response)
            await until_current(events)
            first.runner.context.waits.stop()
            event_id, kind, _ = (await take(events, 1))[0]
            assert (event_id, kind) == (None, "stopping")
