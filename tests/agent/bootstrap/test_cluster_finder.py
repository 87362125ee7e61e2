"""The small parts of a start: ports, versions that block, introductions, finding a cluster, guarding one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.bootstrap import cluster_finder as starting
from shoal.agent.bootstrap.empty_cluster_guard import EmptyClusterGuard
from shoal.agent.bootstrap.introduction import Introduction, IntroductionError, parse_introduction
from shoal.agent.bootstrap.rules import can_never_have_lived
from shoal.agent.config import AgentConfig
from shoal.agent.events.change_counter import Watch
from shoal.agent.members.roster import ForeignCluster, cluster_id_of, natural
from shoal.agent.members.tags import Peer
from shoal.agent.process.clock import SystemClock
from shoal.agent.process.ports import PortChoice, PortError, listen
from shoal.agent.topics.catalog import Catalog, CreateTopic, Seal
from shoal.agent.topics.cluster_file import ClusterRecord
from shoal.membership.interface import Member

OURS, THEIRS = b"o" * 16, b"t" * 16


# ---- ports -----------------------------------------------------------------------------------------------


def machine(taken: set[int], fault: int = errno.EADDRINUSE) -> Callable[[int], Any]:
    async def start(port: int) -> int:
        if port in taken:
            raise OSError(fault, "no")
        return port

    return start


@pytest.mark.parametrize(
    ("explicit", "kept", "taken", "got", "stepped"),
    [
        (None, None, set(), 7070, False),
        (None, None, {7070, 7071}, 7072, True),
        (None, 9000, set(), 9000, False),
        (None, 9000, {9000}, 7070, True),
        (None, 7071, {7071}, 7070, True),
        (8080, 9000, {9000}, 8080, False),
        (0, 9000, set(), 0, False),
    ],
)
async def test_which_port(
    explicit: int | None, kept: int | None, taken: set[int], got: int, stepped: bool
) -> None:
    """Asked for: that one. Kept from the last run: that one if it is free. Else the next free one, and
    said.
    """
    choice = PortChoice("--http-port", explicit, kept, 7070)
    port = await listen(choice, "127.0.0.1", machine(taken))
    assert (port, choice.has_stepped(port)) == (got, stepped)


@pytest.mark.parametrize(
    ("explicit", "fault", "hint"),
    [
        (80, errno.EADDRINUSE, "stop what listens there"),
        (80, errno.EACCES, "above 1023"),
        (None, errno.EADDRINUSE, "are all in use"),
        (None, errno.EADDRNOTAVAIL, "not an address of this host"),
        (None, errno.EIO, "cannot listen"),
    ],
)
async def test_no_port(explicit: int | None, fault: int, hint: str) -> None:
    """One line each that says what to do."""
    choice = PortChoice("--http-port", explicit, None, 7070)
    with pytest.raises(PortError, match=hint):
        await listen(choice, "127.0.0.1", machine(set(range(65_536)), fault))


# ---- versions ----------------------------------------------------------------------------------------------


async def test_a_watch_wakes_everybody_once() -> None:
    """And leaves no waiter behind, whoever gave up."""
    watch = Watch("run")
    waiting = [asyncio.create_task(watch.wait_next(60_000)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting[0]
    watch.changed()
    assert await asyncio.gather(*waiting[1:]) == [True, True]
    assert await watch.wait_next(1) is False
    assert watch.version == "run.2"
    assert watch._waiting == 0


# ---- introductions -------------------------------------------------------------------------------


def test_an_introduction_is_read_from_the_agents_document() -> None:
    """What GET /v1/agent says of a member in a cluster."""
    document = {"id": "a", "cluster": "c", "cluster_id": OURS.hex(), "catalog": {"birth": ["a", "b"]}}
    assert parse_introduction(json.dumps(document).encode()) == Introduction("a", "c", OURS, ("a", "b"))
    for change in ({"catalog": None}, {"cluster_id": None}, {"cluster_id": "00"}, {"catalog": {"birth": []}}):
        with pytest.raises(IntroductionError):
            parse_introduction(json.dumps(document | change).encode())


@given(st.binary(max_size=60))
def test_any_other_answer_is_refused(body: bytes) -> None:
    """With the one error of this decoder."""
    with pytest.raises(IntroductionError):
        parse_introduction(body)


# ---- finding a cluster ---------------------------------------------------------------------------


class FakeRoster:
    """A member list that the test edits."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.foreign: list[ForeignCluster] = []
        self.listener: Callable[[], None] = lambda: None
        self.cluster_id = OURS
        self.cluster = "shoal"

    def listen(self, listener: Callable[[], None]) -> None:
        self.listener = listener

    def starting_peers(self) -> list[Peer]:
        return self.peers

    def foreign_clusters(self) -> list[ForeignCluster]:
        return self.foreign


class Start:
    def __init__(self, **settings: Any) -> None:
        self.roster: Any = FakeRoster()
        self.adopted: list[ClusterRecord] = []
        self.said: list[str] = []
        self.finder = starting.ClusterFinder(
            config=AgentConfig(data="d", **settings),
            agent_id="b",
            roster=self.roster,
            clock=SystemClock(),
            rng=random.Random(1),
            adopt=self.adopt,
            say=self.said.append,
        )
        self.task = asyncio.create_task(self.finder.find_cluster())

    async def adopt(self, record: ClusterRecord) -> None:
        self.adopted.append(record)

    def meet(self, *peers: Peer) -> None:
        self.roster.peers = list(peers)
        self.roster.listener()


async def test_an_agent_founds_once_those_expected_have_met() -> None:
    """And has made it durable before it says so to anybody."""
    start = Start(expect=3)
    await asyncio.sleep(0.01)
    start.meet(Peer("c", None, "http://c"))
    await asyncio.sleep(0.01)
    assert not start.task.done()
    start.meet(Peer("c", None, "http://c"), Peer("d", None, "http://d"))
    record = await asyncio.wait_for(start.task, 40)
    assert start.adopted == [record]
    assert record.catalog_birth == ("b", "c", "d")
    assert len(record.cluster_id) == 16
    assert start.said == ["1 of 3 expected members have met", "2 of 3 expected members have met"]


async def test_an_agent_joins_as_soon_as_somebody_can_introduce_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that cannot answer yet is asked again; the birth is taken as told, never made up."""
    answers: list[Any] = [IntroductionError("not yet"), Introduction("a", "shoal", THEIRS, ("a", "x", "y"))]
    asked: list[list[str]] = []

    async def ask(urls: list[str], cluster_id: bytes) -> Introduction:
        asked.append(urls)
        answer = answers.pop(0)
        if isinstance(answer, IntroductionError):
            raise answer
        return answer

    monkeypatch.setattr(starting, "ask", ask)
    monkeypatch.setattr(starting, "RETRY_MS", 1)
    start = Start(join=("seed:1",))
    start.meet(Peer("a", THEIRS, "http://a"), Peer("c", None, "http://c"))
    record = await asyncio.wait_for(start.task, 40)
    assert (record.cluster_id, record.catalog_birth) == (THEIRS, ("a", "x", "y"))
    assert asked == [["http://a"], ["http://a"]]


async def no_log() -> None:
    """This agent holds no replica of the catalog."""


async def test_a_lost_birth_is_read_from_the_own_log_when_nobody_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All members may have lost it: whoever waits for the others waits for ever."""
    monkeypatch.setattr(starting, "OWN_LOG_AFTER_MS", 20)
    start = Start(expect=9)
    start.task.cancel()
    asked = []

    async def own_log() -> tuple[str, ...]:
        asked.append(1)
        return ("a", "b")

    record = await asyncio.wait_for(start.finder.recover_birth(OURS, own_log), 40)
    assert (record.cluster_id, record.catalog_birth, asked) == (OURS, ("a", "b"), [1])


async def test_a_lost_birth_is_asked_of_the_same_cluster_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose record is gone must not take the birth of a stranger."""

    async def ask(urls: list[str], cluster_id: bytes) -> Introduction:
        assert urls == ["http://c"]
        return Introduction("c", "shoal", cluster_id, ("c",))

    monkeypatch.setattr(starting, "ask", ask)
    start = Start(expect=9)
    start.task.cancel()
    start.meet(Peer("a", THEIRS, "http://a"))
    recovering = asyncio.create_task(start.finder.recover_birth(OURS, no_log))
    await asyncio.sleep(0.01)
    assert not recovering.done()
    start.meet(Peer("a", THEIRS, "http://a"), Peer("c", OURS, "http://c"))
    assert (await asyncio.wait_for(recovering, 40)).catalog_birth == ("c",)


# ---- guarding a cluster --------------------------------------------------------------------------


class FakeCatalog:
    """A catalog of one voter: what is proposed is applied."""

    def __init__(self, birth: tuple[str, ...]) -> None:
        self.catalog = Catalog()
        self.birth = birth
        self.sealed = asyncio.Event()
        self.exchange = self

    async def propose(self, command: Seal, timeout_ms: int) -> None:
        if self.catalog.apply(self.catalog.offset, command) == "done":
            self.sealed.set()

    async def tell_peers(self) -> None:
        pass


def guard(
    monkeypatch: pytest.MonkeyPatch, *, own: bytes, leads: bool = True, birth: tuple[str, ...] = ("a",)
) -> tuple[EmptyClusterGuard, Any, Any]:
    monkeypatch.setattr("shoal.agent.bootstrap.empty_cluster_guard.SETTLE_MS", 0)
    monkeypatch.setattr("shoal.agent.bootstrap.empty_cluster_guard.LOOK_S", 0.005)
    roster: Any = FakeRoster()
    roster.cluster_id = own
    catalog: Any = FakeCatalog(birth)
    catalog.leads = lambda: leads
    made = EmptyClusterGuard(roster=roster, catalog=catalog, clock=SystemClock(), timeout_ms=20)
    return made, roster, catalog


async def test_the_larger_empty_cluster_seals_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only its catalog's leader proposes it."""
    larger, roster, catalog = guard(monkeypatch, own=b"z" * 16)
    roster.foreign = [ForeignCluster(THEIRS, False, ("x",))]
    assert "sealed" in await asyncio.wait_for(larger.run(), 40)
    assert catalog.catalog.sealed_for == THEIRS


@pytest.mark.parametrize("case", ["smaller", "with topics", "not leading"])
async def test_nobody_else_dissolves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """The smaller one waits, one with topics never gives up, a follower proposes nothing; each says so
    once.
    """
    made, roster, catalog = guard(
        monkeypatch, own=b"a" * 16 if case == "smaller" else b"z" * 16, leads=case != "not leading"
    )
    if case == "with topics":
        entry: Any = SimpleNamespace(name="t", topic_id=b"i" * 16, cost=lambda: 1)
        catalog.catalog.apply(0, CreateTopic(entry))
    roster.foreign = [ForeignCluster(THEIRS, False, ("x",))]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(made.run(), 0.1)
    assert catalog.catalog.sealed_for is None
    assert sum("is called shoal as well" in record.getMessage() for record in caplog.records) == 1


async def test_a_cluster_that_has_lived_is_not_given_up_by_hearsay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something was committed here once, so a majority was ours, whatever gossip says now."""
    made, roster, catalog = guard(monkeypatch, own=b"a" * 16, leads=False, birth=("a", "b", "c"))
    catalog.catalog.offset = 1
    roster.foreign = [ForeignCluster(THEIRS, True, ("b", "c"))]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(made.run(), 0.1)


async def test_a_cluster_that_never_lived_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its founder crashed before telling: the other birth voters belong elsewhere by now."""
    made, roster, _ = guard(monkeypatch, own=b"a" * 16, leads=False, birth=("a", "b", "c"))
    roster.foreign = [ForeignCluster(THEIRS, True, ("b", "c"))]
    assert "never held anything" in await asyncio.wait_for(made.run(), 40)


@pytest.mark.parametrize(
    ("birth", "foreign", "dead"),
    [
        ("a", "", False),
        ("abc", "b", False),
        ("abc", "bc", True),
        ("abcde", "bc", False),
        ("abcde", "bcd", True),
    ],
)
def test_when_a_cluster_can_never_have_lived(birth: str, foreign: str, dead: bool) -> None:
    """When those left could not have been a majority."""
    assert can_never_have_lived(tuple(birth), tuple(foreign)) is dead


# ---- tags of others ------------------------------------------------------------------------------


@given(st.text(max_size=40))
def test_tags_of_others_are_hearsay(text: str) -> None:
    """Whatever stands in them, reading them never fails."""
    assert natural(text) >= 0
    member = Member("m", "127.0.0.1", 1, {"cid": text}, "alive", 1, 0)
    found = cluster_id_of(member)
    assert found is None or len(found) == 16
