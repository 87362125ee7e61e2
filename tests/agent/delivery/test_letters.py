"""Dead letters: each of them once, whoever leads, with its history, and never before its message died."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from waiting import PATIENCE_S, until

from shoal.agent.durable.ids import GroupId
from shoal.agent.fetch import FetchRequest
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.partition.plan import ViewKind
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.receive import ActKind, GroupKey
from shoal.agent.service.letters import DeadLetters
from shoal.agent.service.redrive import KeptLetter, Redriven, Redriver, letters_in
from shoal.agent.submission import Submission
from shoal.agent.topics.catalog import Catalog, CreateTopic
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, LogIndex, Message, Offset, ProducerStamp, message_from_batch
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.segment_store.check.damage import range_of_entries
from tests.agent.delivery.consumers import (
    KEY,
    Consumers,
    ack,
    attempts,
    equal_folds,
    fold_of,
    group_of,
    offsets,
    wanted,
)
from tests.agent.harness import GROUP, Cluster, Node
from tests.agent.host.test_catch_up import KEEP, fill, kept, log_of, trimmed
from tests.agent.memory_cluster import memory_cluster
from tests.agent.topics.test_catalog import entry

DEAD = GroupId(b"d" * 16, GROUP.partition)
SEQUENCES = count()
REJECTING = GroupSettings(retry_first_ms=0, retry_most_ms=0)


def catalog(dead: str = "flights.dead.workers") -> Catalog:
    """Of two topics: the second one is for the dead letters of a group of the first one."""
    found = Catalog()
    found.apply(0, CreateTopic(replace(entry("flights"), topic_id=GROUP.topic_id)))
    letters = replace(entry(dead), topic_id=DEAD.topic_id, letters_of=GROUP.topic_id)
    found.apply(1, CreateTopic(letters))
    return found


class Post(DeadLetters):
    """`faults`: how many answers are lost, after the letter was stored. `sent`: sequences, as often as they
    were sent."""

    def __init__(self, node: Node, office: Office) -> None:
        super().__init__(node.host, office.peers(node), lambda: office.catalog, office.leader)
        self._office = office

    async def store(
        self, source: GroupId, group: str, producer: ProducerStamp, message: Message, timeout_ms: int
    ) -> None:
        """Perhaps without telling."""
        self._office.sent.append(producer.sequence)
        await super().store(source, group, producer, message, timeout_ms)
        if self._office.faults:
            self._office.faults -= 1
            raise ShoalError("no-leader", "the answer was lost", definite=False)


class Office:
    """The agents' posts, and what they all know."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.catalog = catalog()
        self.faults = 0
        self.sent: list[int] = []

    def leader(self, group: GroupId) -> str | None:
        return next(
            (
                node.agent_id
                for node in self.cluster.alive
                if node.host.has(group) and node.host.status(group).leader_agent_id == node.agent_id
            ),
            None,
        )

    def peers(self, node: Node) -> Any:
        """Requests of other agents: those whose links are not made here are answered at once."""
        office = self

        class Peers:
            agent_id = node.agent_id

            async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
                other = next(item for item in office.cluster.alive if item.agent_id == agent_id)
                post = Post(other, office)
                answers = {PeerMessage.LETTERS: post.on_letter, PeerMessage.LETTERS_READ: post.on_read}
                return await answers[PeerMessage(kind)](node.agent_id, payload)

        return Peers()

    def open(self, node: Node) -> None:
        node.host._config.letters.post = Post(node, self)


async def started(cluster: Cluster, settings: GroupSettings = REJECTING) -> tuple[Consumers, Office]:
    """Consumers whose dead letters have a topic, of one partition on the same nodes."""
    consumers, office = Consumers(cluster, settings), Office(cluster)
    join = consumers.join

    async def joined(node: Node) -> None:
        await join(node)
        await node.open(cluster.birth, DEAD)
        office.open(node)

    consumers.join = joined  # type: ignore[method-assign]
    await consumers.start()
    return consumers, office


async def append(cluster: Cluster, *values: str) -> None:
    """Records with keys and headers."""
    columns = RecordColumns()
    for value in values:
        columns.append(5, b"key " + value.encode(), value.encode(), [("trace", b"t1"), ("none", None)])
    message = message_from_batch(columns_to_batch(columns, 1_000_000))
    once = ProducerStamp(b"test" * 4, 0, next(SEQUENCES))
    submission = Submission.of([message], timeout_ms=10_000, producer=once, consecutive=False)
    await at_leader(cluster, lambda node: node.host.append(GROUP, submission), repeats=True)


async def at_leader(
    cluster: Cluster, call: Callable[[Node], Awaitable[Any]], *, repeats: bool = False
) -> Any:
    """Asked again while nothing has happened: on a busy machine leaders change. `repeats`: also where nobody
    knows, since a repetition does no harm."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call(await cluster.leader())
            except ShoalError as error:
                if not error.retriable or not (error.definite or repeats):
                    raise
                await asyncio.sleep(0.02)


async def letters(cluster: Cluster) -> list[dict[str, Any]]:
    """What stands in the dead letters' topic, at whichever replica has most of it."""
    serving = [node for node in cluster.alive if is_active(node, DEAD)]
    node = max(serving, key=lambda item: item.host.replica(DEAD).state.high_watermark)
    fetch = await node.host.reader(DEAD).read(FetchRequest(Offset(0), max_bytes=2**20, local=True))
    return rows_of(fetch.frames)


def rows_of(frames: Sequence[Any]) -> list[dict[str, Any]]:
    batches = (pa.ipc.read_record_batch(pa.py_buffer(frame), DEFAULT_SCHEMA) for frame in frames)
    return [row for batch in batches for row in batch.to_pylist()]


def headers(row: dict[str, Any]) -> dict[str, bytes]:
    return {item["key"]: item["value"] for item in row["headers"]}


def source_offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [int(headers(row)["shoal-offset"]) for row in rows]


def is_active(node: Node, group: GroupId) -> bool:
    return node.host.has(group) and node.host.status(group).state == "active"


def are_forgotten(cluster: Cluster, given: int) -> bool:
    """Whether every replica knows that so many letters are stored."""
    if not all(is_active(node, GROUP) for node in cluster.alive):
        return False  # one that lagged behind a trim is copied anew
    groups = [fold_of(node).groups.get(KEY) for node in cluster.alive]
    # A follower may have to hear yet that there is such a group.
    return all(group and group.letters_given == given and not group.letters for group in groups)


async def test_a_message_that_died_stands_in_the_topic_with_its_history() -> None:
    """Key, value and headers are its own, and more headers tell of it."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, _ = await started(cluster)
        await append(cluster, "one", "two", "three")
        granted = await consumers.receive(wanted("a"))
        await consumers.act(ack(granted, 1, ActKind.REJECT, reason="no such account"))
        await until(lambda: are_forgotten(cluster, 1))
        (row,) = await letters(cluster)
        assert (row["key"], row["value"], row["timestamp"].timestamp()) == (b"key two", b"two", 5e-06)
        told = headers(row)
        assert (told["trace"], told["none"]) == (b"t1", None)
        assert told["shoal-topic"] == b"flights"
        assert told["shoal-group"] == b"workers"
        assert told["shoal-reason"] == b"rejected: no such account"
        assert told["shoal-attempts"] == b"1"
        assert "shoal-lost" not in told
        await consumers.act(ack(granted, 0), ack(granted, 2))
        assert group_of(await cluster.leader()).floor.offset == 3


async def test_letters_stand_there_once_whatever_is_lost_on_the_way() -> None:
    """Answers, and leaders, of both partitions: a letter is sent again under its own number."""
    cluster, _ = memory_cluster(seed=11)
    async with cluster:
        consumers, office = await started(cluster)
        await append(cluster, *(f"{number}" for number in range(20)))
        office.faults = 7
        granted = await consumers.receive(wanted("a", 20))
        for first in (0, 10):
            acts = [ack(granted, at, ActKind.REJECT) for at in range(first, first + 10)]
            assert await consumers.act(*acts) == (None,) * 10
            await until(lambda first=first: len(office.sent) > first + 3)
            leader = await cluster.leader()
            await cluster.stop(leader)
            await consumers.join(leader)
        await until(lambda: are_forgotten(cluster, 20))
        assert source_offsets(await letters(cluster)) == list(range(20))
        assert len(office.sent) > 20
        assert group_of(await cluster.leader()).floor.offset == 20
        await equal_folds(cluster)


async def test_a_letter_of_an_entry_that_is_not_committed_is_not_sent() -> None:
    """The message may live on under the next leader."""
    cluster, _ = memory_cluster(seed=12)
    async with cluster:
        consumers, office = await started(cluster)
        await append(cluster, "one")
        granted = await consumers.receive(wanted("a"))
        await equal_folds(cluster)
        old = await cluster.leader()
        old.cut_off()
        keeper = old.host.keeper(GROUP)
        dying = asyncio.create_task(
            keeper.act(granted_key(granted), [ack(granted, 0, ActKind.REJECT)], 2**40)
        )
        await until(lambda: group_of(old).letters)
        for _ in range(20):
            keeper.check()
            await asyncio.sleep(0)
        cluster.alive.remove(old)
        await consumers.act(ack(granted))
        await old.stop()
        await asyncio.gather(dying, return_exceptions=True)
        assert office.sent == []
        await consumers.join(old)
        await equal_folds(cluster)
        assert await letters(cluster) == []


def granted_key(granted: Any) -> Any:
    return ack(granted).receipt.group


async def test_a_record_that_is_gone_leaves_a_letter_without_value() -> None:
    """Retention took it before it was sent; the letters behind it go on."""
    cluster, _ = memory_cluster(seed=13)
    async with cluster:
        consumers, office = await started(cluster)
        post = office.catalog
        office.catalog = Catalog()  # nobody knows the topic of dead letters yet
        await append(cluster, "one")
        granted = await consumers.receive(wanted("a"))
        await consumers.act(ack(granted, 0, ActKind.REJECT))
        for node in cluster.alive:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 1, 60)
        await trimmed(cluster, 20)
        await kept(cluster)
        last = await consumers.receive(wanted("a", 1))
        await consumers.act(ack(last, kind=ActKind.REJECT))
        office.catalog = post
        await until(lambda: are_forgotten(cluster, 2))
        gone, there = await letters(cluster)
        assert (gone["key"], gone["value"], headers(gone)["shoal-lost"]) == (None, None, b"true")
        assert headers(gone)["shoal-offset"] == b"0"
        assert there["value"] is not None
        assert "shoal-lost" not in headers(there)


async def test_a_letter_that_the_topic_never_takes_goes_without_its_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With its history it is too large, say; letters never stand still for one."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, _ = await started(cluster)
        await append(cluster, "one", "two")
        node = await cluster.leader()
        append_there = node.host.append

        async def picky(group: GroupId, submission: Submission) -> Any:
            if group == DEAD and b"key one" in bytes(submission.records[0].body):  # type: ignore[index, union-attr]
                raise ShoalError("too-large", "one record too many")
            return await append_there(group, submission)

        node.host.append = picky  # type: ignore[method-assign]
        granted = await consumers.receive(wanted("a"))
        await consumers.act(ack(granted, kind=ActKind.REJECT))
        await until(lambda: are_forgotten(cluster, 2))
        assert [row["value"] for row in await letters(cluster)] == [None, b"two"]
        assert "the dead letter of offset 0 cannot be stored as it is" in caplog.text


async def test_letters_that_have_no_topic_hold_up_no_other_group(caplog: pytest.LogCaptureFixture) -> None:
    """Its topic was deleted, say. They wait, which an operator is told of, and go once it is there again."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, office = await started(cluster)
        other = GroupKey(b"other group here")
        plan = consumers.plans.groups[KEY]._replace(key=other, name="others")
        consumers.set_groups(consumers.plans._replace(groups={**consumers.plans.groups, other: plan}))
        known, office.catalog = office.catalog, catalog("flights.dead.others")
        await append(cluster, "one")
        for key in (KEY, other):
            granted = await consumers.receive(wanted("a"), key=key)
            act = ack(granted, kind=ActKind.REJECT)
            acts = [act._replace(receipt=act.receipt._replace(group=key))]
            await at_leader(
                cluster, lambda node, key=key, acts=acts: node.host.keeper(GROUP).act(key, acts, 2**40)
            )
        groups = fold_of(await cluster.leader()).groups
        await until(lambda: groups[other].letters_given and not groups[other].letters)
        assert len(groups[KEY].letters) == 1
        assert "dead letters of group workers wait: unknown-topic" in caplog.text
        office.catalog = known
        await until(lambda: are_forgotten(cluster, 1))
        assert [headers(row)["shoal-group"] for row in await letters(cluster)] == [b"others", b"workers"]


async def test_quarantined_records_are_lost_to_every_group_and_to_its_letters() -> None:
    """Nobody has them intact: the group goes on behind them, and says how many it skipped."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, office = await started(cluster)
        known, office.catalog = office.catalog, Catalog()
        for value in ("one", "two", "three", "four"):
            await append(cluster, value)
        first = await consumers.receive(wanted("a", 1))
        await consumers.act(ack(first, kind=ActKind.REJECT))
        node = await cluster.leader()
        replica = node.host.replica(GROUP)
        bad = [replica.log.index_for_offset(Offset(at)) for at in (0, 2)]
        replica.damaged_ranges = tuple(damaged(replica, index) for index in bad)
        replica.plan = replace(replica.plan, quarantined=frozenset(bad))
        granted = await consumers.receive(wanted("a"))
        assert offsets(granted) == [1, 3]
        await consumers.act(ack(granted))
        office.catalog = known
        await until(lambda: are_forgotten(cluster, 1))
        (row,) = await letters(cluster)
        assert headers(row)["shoal-lost"] == b"true"
        group = group_of(node)
        await until(lambda: group.floor.offset == 4)
        assert group.skipped == 1
        assert log_of(node).start_offset == 0


def damaged(replica: Any, index: LogIndex) -> Any:
    """The batch with that index, as an opening would tell of it."""
    entry = replica.log.entry(index)
    return range_of_entries("log", entry, entry, "zeros")


async def redriven(
    cluster: Cluster, consumers: Consumers, office: Office, limit: int | None = None
) -> tuple[int, int]:
    """At the leader of the partition where the messages died."""
    key = next(iter(consumers.plans.groups))

    async def run(node: Node) -> tuple[int, int]:
        read = partial(Post(node, office).read, GROUP, "workers")
        return (await Redriver(node.host, read, GROUP, key, 10_000).run(limit))[:2]

    found: tuple[int, int] = await at_leader(cluster, run)
    return found


async def test_letters_come_again_to_their_own_group_at_their_own_place() -> None:
    """Attempts begin anew; a limit is kept; who repeats a redrive goes on where it came to."""
    cluster, _ = memory_cluster(seed=14)
    async with cluster:
        consumers, office = await started(cluster)
        await append(cluster, *(f"{number}" for number in range(6)))
        granted = await consumers.receive(wanted("a"))
        await consumers.act(*(ack(granted, at, ActKind.REJECT) for at in (0, 2, 4)), ack(granted, 1))
        await until(lambda: are_forgotten(cluster, 3))
        for node in cluster.nodes:  # wherever the letters are
            behind, batches = await Post(node, office).read(GROUP, "workers", Offset(0))
            assert (behind, [letter.ordinal for batch in batches for letter in letters_in(batch)]) == (
                3,
                [1, 2, 3],
            )
        assert await redriven(cluster, consumers, office, 2) == (2, 0)
        again = await consumers.receive(wanted("b"))
        assert attempts(again) == {0: 1, 2: 1}
        assert await consumers.act(ack(again, 0), ack(again, 2, ActKind.REJECT)) == (None, None)
        await until(lambda: are_forgotten(cluster, 4))
        assert await redriven(cluster, consumers, office) == (2, 0)
        assert attempts(await consumers.receive(wanted("b"))) == {2: 1, 4: 1}
        assert await redriven(cluster, consumers, office) == (0, 0)
        await equal_folds(cluster)


async def test_a_letter_whose_record_is_gone_is_appended_anew_once() -> None:
    """As its message was; a redrive that does not hear of its end is repeated without harm."""
    cluster, _ = memory_cluster(seed=15)
    async with cluster:
        consumers, office = await started(cluster)
        await append(cluster, "one")
        granted = await consumers.receive(wanted("a"))
        await consumers.act(ack(granted, 0, ActKind.REJECT))
        await until(lambda: are_forgotten(cluster, 1))
        for node in cluster.alive:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 1, 60)
        leader = await trimmed(cluster, 20)
        await kept(cluster)
        keeper, end = leader.host.keeper(GROUP), log_of(leader).end_offset

        async def unheard(*_: Any) -> bool:
            raise ShoalError("timeout", "nobody knows", definite=False)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keeper, "change", unheard)
            with pytest.raises(ShoalError, match="nobody knows"):
                await redriven(cluster, consumers, office)
        assert await redriven(cluster, consumers, office) == (1, 1)
        assert log_of(await cluster.leader()).end_offset == end + 1
        fetch = await leader.host.reader(GROUP).read(FetchRequest(end, max_bytes=2**20, local=True))
        (row,) = rows_of(fetch.frames)
        assert (row["key"], row["value"], headers(row)) == (
            b"key one",
            b"one",
            {"trace": b"t1", "none": None},
        )
        await equal_folds(cluster)


class TableHost:
    """The host of a node, for which the group is of a table."""

    def __init__(self, node: Node) -> None:
        self.host = node.host
        self.clock, self.keeper, self.append = node.host.clock, node.host.keeper, node.host.append

    def replica(self, group: GroupId) -> Any:
        """With what a redrive looks at."""
        replica = self.host.replica(group)
        return SimpleNamespace(plan=replace(replica.plan, view=ViewKind.TABLE), log=replica.log)


class RefusingHost:
    """The host of a node whose topic takes no such record any more."""

    def __init__(self, node: Node) -> None:
        self.clock, self.keeper, self.replica = node.host.clock, node.host.keeper, node.host.replica

    async def append(self, group: GroupId, submission: Submission) -> Any:
        raise ShoalError("too-large", "a record of more than the topic takes")


@pytest.mark.parametrize(("host", "reason"), [(TableHost, "trimmed"), (RefusingHost, "too-large")])
async def test_a_letter_that_cannot_come_again_holds_up_no_other(host: Any, reason: str) -> None:
    """As a record of a table it would be newer than the row that its key has now. It stays where it is, and
    is told of once; the limit counts those that come again."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, office = await started(cluster)
        await append(cluster, "one", "two")
        granted = await consumers.receive(wanted("a"))
        await consumers.act(*(ack(granted, at, ActKind.REJECT) for at in (0, 1)))
        await until(lambda: are_forgotten(cluster, 2))
        for node in cluster.alive:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 2, 60)
        leader = await trimmed(cluster, 20)
        await kept(cluster)
        granted = await consumers.receive(wanted("a", 1))
        (young,) = offsets(granted)
        await consumers.act(ack(granted, young, ActKind.REJECT))
        await until(lambda: are_forgotten(cluster, 3))
        end, key = log_of(leader).end_offset, next(iter(consumers.plans.groups))

        async def run(node: Node) -> Any:
            read = partial(Post(node, office).read, GROUP, "workers")
            return await Redriver(host(node), read, GROUP, key, 10_000).run(1)

        found = await at_leader(cluster, run)
        assert found == Redriven(1, 0, 2, (KeptLetter(0, reason), KeptLetter(1, reason)))
        assert await at_leader(cluster, run) == Redriven(0, 0, 0, ())
        assert log_of(leader).end_offset == end
        assert source_offsets(await letters(cluster)) == [0, 1, young]
        assert attempts(await consumers.receive(wanted("b", 1))) == {young: 1}


def test_records_that_are_no_letters_are_passed_over() -> None:
    """Anybody may append to the topic."""
    texts: list[list[tuple[str, bytes | None]] | None] = [
        None,
        [("shoal-letter", b"x"), ("shoal-offset", b"1")],
        [("shoal-letter", None), ("shoal-offset", b"1")],
        [("shoal-letter", b"1"), ("shoal-offset", b"-1")],
        [("shoal-letter", b"1"), ("shoal-offset", b"1"), ("shoal-due", b"soon")],
        [("shoal-letter", b"7"), ("shoal-offset", b"3"), ("shoal-due", b"1970-01-01T00:00:01Z")],
    ]
    columns = RecordColumns([None] * 6, [None] * 6, [b"v"] * 6, texts)
    (letter,) = letters_in(columns_to_batch(columns, 1_000_000))
    assert letter[:4] == (7, 3, 1_000_000, False)
