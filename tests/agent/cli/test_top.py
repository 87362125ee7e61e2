"""`shoal top` without a terminal: what two samples mean, what keys do, and how narrow it may get."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.cli.top.json_document import document_of
from shoal.agent.cli.top.rows import ClusterRows, rows_of
from shoal.agent.cli.top.samples import ClusterSample, sample_of
from shoal.agent.cli.top.tables import COLUMNS, Order, TableKind, cut, ordered, rows_in, table
from shoal.agent.cli.top.view import Key, ListView, TopView, keys_of, screen_lines

A, B = "a" * 32, "b" * 32
URL = "http://127.0.0.1:7070"


def held(topic: str, partition: int, role: str, end: int, term: int = 1) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "role": role, "term": term, "log_end_offset": end}


def member(agent: str, *partitions: dict[str, Any], status: str = "alive") -> dict[str, Any]:
    name = f"agent-{agent[0]}"
    return {"id": agent, "name": name, "status": status, "url": URL, "partitions": list(partitions)}


def topic(name: str, partitions: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "id": f"id of {name}", "partitions": partitions} | more


def sample(at_s: float, topics: list[dict[str, Any]], *members: dict[str, Any]) -> ClusterSample:
    return sample_of(topics, {"cluster": "fish", "members": members}, URL, at_s)


def two_agents(orders: int, events: int, behind: int = 0) -> list[dict[str, Any]]:
    """`orders` and `events` records in two topics, one led by each agent."""
    return [
        member(A, held("orders", 0, "leader", orders), held("events", 0, "follower", events - behind)),
        member(B, held("orders", 0, "follower", orders), held("events", 0, "leader", events)),
    ]


TOPICS = [topic("orders", records=90, bytes=1_000), topic("events", records=10, bytes=500)]


def test_rates_are_differences_and_lag_is_what_followers_lack() -> None:
    """Over the time between the two samples; of topics, partitions, agents and all together."""
    before = sample(10.0, TOPICS, *two_agents(100, 50))
    grown = [topic("orders", records=190, bytes=5_000), topic("events", records=12, bytes=400)]
    shown = rows_of(sample(12.0, grown, *two_agents(200, 53, behind=3)), before)
    orders, events = shown.topics
    assert (orders.rate, orders.lag, orders.bytes_rate, orders.records) == (50.0, 0, 2_000.0, 190)
    assert (events.rate, events.lag, events.bytes_rate) == (1.5, 3, None)  # retention took more than came
    assert [(row.leader, row.end, row.rate) for row in shown.partitions] == [
        ("agent-a", 200, 50.0),
        ("agent-b", 53, 1.5),
    ]
    assert [(row.rate, row.lag, row.led, row.held) for row in shown.agents] == [
        (50.0, 3, 1, 2),
        (1.5, 0, 1, 2),
    ]
    assert (shown.rate, shown.alive, shown.trouble) == (51.5, 2, "")


def test_without_a_sample_before_there_are_no_rates() -> None:
    """They are unknown, not 0. So they are of a topic that was deleted and made anew, and of a new one."""
    now = sample(2.0, TOPICS, *two_agents(100, 50))
    first = rows_of(now, None)
    assert [first.rate, *(row.rate for row in first.topics), *(row.rate for row in first.agents)] == [
        None
    ] * 5
    before = sample(1.0, [topic("orders") | {"id": "another"}], member(A, held("orders", 0, "leader", 7)))
    again = rows_of(now, before)
    assert [(row.rate, row.bytes_rate) for row in again.topics] == [(None, None), (None, None)]
    assert rows_of(now, now).rate is None, "two samples of one moment"


def test_an_election_makes_no_rate_negative() -> None:
    """The successor's log may be shorter: what was not committed is cut. A leader that has not heard of its
    successor leads no more."""
    before = sample(1.0, TOPICS[:1], member(A, held("orders", 0, "leader", 100)))
    now = sample(
        2.0,
        TOPICS[:1],
        member(A, held("orders", 0, "leader", 100, term=1)),
        member(B, held("orders", 0, "leader", 90, term=2)),
    )
    row = rows_of(now, before).partitions[0]
    assert (row.leader, row.term, row.rate, row.lag) == ("agent-b", 2, 0.0, 0)


def test_partitions_without_a_leader_are_counted() -> None:
    """That of an agent that is gone, one that nobody has reported, and one between two elections."""
    gone = member(A, held("orders", 0, "leader", 9), status="failed")
    follower = member(B, held("orders", 0, "follower", 7), held("orders", 1, "follower", 5))
    shown = rows_of(sample(1.0, [topic("orders", 3, under_replicated=2)], gone, follower), None)
    assert [(row.leader, row.end, row.lag) for row in shown.partitions] == [
        (None, 9, None),
        (None, 5, None),
        (None, None, None),
    ]
    assert shown.topics[0].trouble == shown.trouble == "3 leaderless, 2 under-replicated"
    assert [(row.led, row.lag, row.rate) for row in shown.agents] == [(0, None, 0.0), (0, None, 0.0)]


def test_the_catalog_is_a_partition_and_no_topic() -> None:
    """It counts for what an agent holds and leads, and not for the rate of records."""
    one = [member(A, held("_catalog", 0, "leader", end), held("orders", 0, "leader", end)) for end in (5, 9)]
    shown = rows_of(sample(2.0, TOPICS[:1], one[1]), sample(1.0, TOPICS[:1], one[0]))
    assert (shown.rate, shown.agents[0].rate, shown.agents[0].led) == (4.0, 4.0, 2)
    assert [row.key for row in shown.of_agent(A)] == ["orders/0", "_catalog/0"]
    assert [row.key for row in shown.partitions] == ["orders/0"]


def test_no_name_of_another_host_reaches_the_terminal_as_a_command() -> None:
    """Escape sequences are taken out; members of Serf that are no agents are left out."""
    odd = member(A) | {"name": "x\x1b[2Jy\n", "url": "http://\x07"}
    shown = rows_of(sample(1.0, [], odd, member(B) | {"kind": "serf"}), None)
    assert [(row.name, row.url) for row in shown.agents] == [("x?[2Jy?", "http://?")]


def cluster_of(topics: int, agents: int = 3) -> ClusterRows:
    """Topics of two partitions, each with another rate."""
    names = [topic(f"topic-{number:03}", 2, records=number, bytes=number << 20) for number in range(topics)]

    def at(second: int) -> ClusterSample:
        members = [
            member(
                chr(97 + agent) * 32,
                *(
                    held(one["name"], part, "leader" if part == agent else "follower", second * number)
                    for number, one in enumerate(names)
                    for part in range(2)
                ),
            )
            for agent in range(agents)
        ]
        return sample(float(second), names, *members)

    return rows_of(at(10), at(9))


def test_rows_are_sorted_by_any_column() -> None:
    """Numbers largest first, words from a to z, unknown ones last, and each the other way round."""
    shown = cluster_of(3)
    lost = shown.topics[0]._replace(rate=None)
    rows = [lost, *shown.topics[1:]]
    names = [row.name for row in shown.topics]
    by_rate = [row.key for row in ordered(TableKind.TOPICS, rows, Order("RECORDS/S"))]
    assert by_rate == [names[2], names[1], names[0]]
    flipped = [row.key for row in ordered(TableKind.TOPICS, rows, Order("RECORDS/S", flipped=True))]
    assert flipped == [names[1], names[2], names[0]]
    assert [row.key for row in ordered(TableKind.TOPICS, rows, Order("TOPIC"))] == names
    assert [row.key for row in ordered(TableKind.TOPICS, rows, Order("TOPIC", flipped=True))] == names[::-1]
    many = ordered(TableKind.PARTITIONS, shown.partitions, Order("PARTITION"))
    assert [row.key for row in many[:3]] == ["topic-000/0", "topic-000/1", "topic-001/0"]


@pytest.mark.parametrize("kind", TableKind)
@given(width=st.integers(1, 160), column=st.integers(0, 6), name=st.text("ab.-_", min_size=1, max_size=249))
def test_a_table_fits_every_width(kind: TableKind, width: int, column: int, name: str) -> None:
    """Columns go, names are cut; the name and the column that it is sorted by stay as long as both fit."""
    shown = cluster_of(2)
    rows = rows_in(kind, replace(shown, topics=(shown.topics[0]._replace(name=name), *shown.topics)), None)
    title = COLUMNS[kind][column].title
    lines = table(kind, rows, width, title)
    assert len(lines) == len(rows) + 1
    assert max(map(len, lines)) <= width
    if width >= 24 and title != "URL":
        assert title in lines[0]
    widest = table(kind, rows, 10_000, title)
    assert widest[0].split() == [column.title for column in COLUMNS[kind]]


def test_twenty_columns_show_names_and_rates() -> None:
    """And no line is broken."""
    lines = table(TableKind.TOPICS, cluster_of(2).topics, 20, "RECORDS/S")
    assert lines == ["TOPIC      RECORDS/S", "topic-000          0", "topic-001        2.0"]
    assert cut("abcdef", 4) == "abc~"
    assert (cut("abcdef", 1), cut("abcdef", 0), cut("ab", 2)) == ("~", "", "ab")


@given(
    st.integers(1, 120), st.integers(1, 40), st.integers(0, 30), st.lists(st.sampled_from(Key), max_size=8)
)
def test_every_screen_fits(width: int, height: int, topics: int, keys: list[Key]) -> None:
    """Whatever was pressed before, down to one character; the chosen row is on it where there is room."""
    cluster, view = cluster_of(topics), TopView()
    for key in keys:
        view = view.pressed(key, cluster, 5) or view
    lines = screen_lines(view, cluster, ["no answer for 3s"], width, height)
    assert 1 <= len(lines) <= height
    assert max(len(line.text) for line in lines) <= width
    if view.rows(cluster) and height >= 4:
        assert sum(line.style.value == "reverse" for line in lines) == 1


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", [Key.QUIT]),
        (b"\x1b[A\x1bOB", [Key.UP, Key.DOWN]),
        (b"\x1b[5~\x1b[6~", [Key.PAGE_UP, Key.PAGE_DOWN]),
        (b"\x1b", [Key.BACK]),
        (b"\r\x1bs", [Key.OPEN, Key.BACK, Key.SORT]),
        (b"\x1b[Zr", [Key.REVERSE]),  # shift-tab
        (b"\x1b[15~\t", [Key.NEXT_TABLE]),  # F5
        (b"\x1b[1;5Cx\x1bOP", []),  # control and an arrow, a letter, F1
        (b"\x1b[", []),
        ("ü€".encode(), []),
        (b"", []),
    ],
)
def test_keys_are_read_from_what_a_terminal_sends(data: bytes, keys: list[Key]) -> None:
    """Unknown sequences mean nothing, and their letters are no keys."""
    assert keys_of(data) == keys


@given(st.binary(max_size=20))
def test_every_input_of_a_terminal_is_read(data: bytes) -> None:
    """To its end, and never with more keys than bytes."""
    assert len(keys_of(data)) <= len(data)


def test_keys_lead_through_the_tables() -> None:
    """Down to the partitions of a topic or agent and back to the row that it came from; tab goes round."""
    cluster, view = cluster_of(3), TopView()
    assert [row.key for row in view.rows(cluster)] == ["topic-002", "topic-001", "topic-000"]

    def press(*keys: Key) -> TopView:
        now: TopView | None = view
        for key in keys:
            assert now is not None
            now = now.pressed(key, cluster, 2)
        assert now is not None
        return now

    view = press(Key.DOWN, Key.OPEN)
    assert [row.key for row in view.rows(cluster)] == ["topic-001/0", "topic-001/1"]
    assert press(Key.OPEN) == view, "nothing lies below a partition"
    view = press(Key.BACK)
    assert (view.shown.kind, view.shown.chosen, view.below) == (TableKind.TOPICS, "topic-001", ())
    assert press(Key.BACK) == view
    assert press(Key.LAST).shown.chosen == press(Key.PAGE_DOWN).shown.chosen == "topic-000"
    assert press(Key.FIRST).shown.chosen == press(Key.PAGE_UP).shown.chosen == "topic-002"
    assert press(Key.SORT).shown.order == Order("BYTES/S")
    assert press(Key.REVERSE).shown.order == Order("RECORDS/S", flipped=True)
    assert press(*[Key.SORT] * len(COLUMNS[TableKind.TOPICS])).shown.order == Order()
    view = press(Key.NEXT_TABLE, Key.OPEN)
    assert (view.shown.title, len(view.rows(cluster))) == ("agent-a", 6)
    assert press(Key.NEXT_TABLE).shown == ListView(TableKind.TOPICS)
    assert press(Key.NEXT_TABLE, Key.NEXT_TABLE, Key.NEXT_TABLE).shown.kind is TableKind.PARTITIONS
    assert view.pressed(Key.QUIT, cluster, 2) is None


def test_a_row_that_is_gone_is_no_fault() -> None:
    """The first row is chosen then, and a table without rows takes every key."""
    view, empty = TopView(ListView(chosen="deleted")), cluster_of(0)
    assert view.pressed(Key.OPEN, cluster_of(2), 5) is not None
    for key in set(Key) - {Key.QUIT}:
        assert view.pressed(key, empty, 5) is not None
    assert "no topics" in [line.text for line in screen_lines(view, empty, [], 80, 24)]


def test_json_has_what_the_tables_have() -> None:
    """Units in the names; of the partitions only those of a topic that is named."""
    document = document_of(cluster_of(2), "topic-001")
    assert document["records_per_second"] == 2.0
    assert document["topics"][1]["records_per_second"] == 2.0
    assert [entry["lag"] for entry in document["agents"]] == [0, 0, 0]
    assert {(entry["topic"], entry["log_end_offset"]) for entry in document["partitions"]} == {
        ("topic-001", 10)
    }
    assert json.loads(json.dumps(document)) == document
