"""What an agent makes of configurations: it opens what is new, deletes what was removed, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import until

from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import GroupId
from shoal.agent.durable.paired_file import PairedFileError
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.members.roster import Roster
from shoal.agent.partition.opener import UnknownReplica
from shoal.agent.partition.status import ReplicaStatus, ServingState
from shoal.agent.peers.messages import PeerMessageError, decode_hold, encode_hold
from shoal.agent.placement.assignments import RECORDS_PER_TURN, Assignments, is_removed
from shoal.agent.routing.table import Claim, Delta, RouteTable
from shoal.agent.topics.catalog_service import CatalogService
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex
from shoal.replication.interfaces import (
    BIRTH_ORDINALS,
    GENERATION_TERM_BITS,
    Configuration,
    Replica,
    ReplicaId,
)
from tests.agent.harness import GROUP, Node

SELF, OTHER, THIRD = "1" * 32, "2" * 32, "3" * 32
BIRTH = Configuration.birth((SELF, OTHER))
BORN_ELSEWHERE = Configuration.birth((OTHER, THIRD))


def configuration(index: int, *replicas: Replica) -> Configuration:
    """OTHER votes in it, beside these."""
    return Configuration(LogIndex(index), (Replica(ReplicaId(0, 1), OTHER), *replicas))


def learner(term: int, index: int) -> Replica:
    return Replica(ReplicaId(term, index), SELF, learner=True)


class FakeCatalog:
    """Knows the topic, unless told otherwise, and how its partitions were born."""

    def __init__(self, node: Node, birth: Configuration) -> None:
        self.changing = asyncio.Lock()
        self.knows = True
        self._node = node
        self._birth = birth

    async def open_replica(self, group: GroupId, replica_id: ReplicaId) -> None:
        assert self.changing.locked()
        if not self.knows:
            raise ShoalError("unknown-topic", "not yet")
        await self._node.open(self._birth, group, replica_id=replica_id)


class FakePeers:
    """Answers with a committed configuration."""

    agent_id = SELF

    def __init__(self) -> None:
        self.answer = b""
        self.asked = 0

    async def request(self, *_: Any) -> bytes:
        self.asked += 1
        return self.answer


class Fixture:
    """A real host and its disk; the rest only remembers."""

    def __init__(self, node: Node, birth: Configuration) -> None:
        self.node = node
        self.birth = birth
        self.catalog = FakeCatalog(node, birth)
        self.peers = FakePeers()
        self.routes = RouteTable()
        self.holding = Assignments(
            host=node.host,
            catalog=cast("CatalogService", self.catalog),
            roster=cast("Roster", self.peers),
            routes=self.routes,
        )

    async def hold(self, given: Configuration, group: GroupId = GROUP, *, caught_up: bool = False) -> None:
        assert await self.holding.on_hold(OTHER, encode_hold(group, given, caught_up=caught_up)) == b""

    async def refuses(self, given: Configuration, code: str, group: GroupId = GROUP) -> None:
        with pytest.raises(ShoalError) as caught:
            await self.hold(given, group)
        assert caught.value.code == code

    def record(self) -> ReplicaRecord | None:
        return self.node.host.replica_record(GROUP)

    def claim(self, index: int, *voters: str) -> None:
        """OTHER says so, in its routes."""
        claim = Claim(GROUP, "leader", 3, index, OTHER, voters)
        assert self.routes.apply(Delta(OTHER, "run", 0, 1, 1, False, ((claim.group, claim),)))

    @property
    def directory(self) -> Path:
        return Path(self.node.directory, "topics", GROUP.topic_id.hex(), str(GROUP.partition))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(SELF, str(tmp_path / "1"))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_a_new_replica_is_opened_once_under_its_own_id(node: Node) -> None:
    """Registered before its first message (safety 2); asked again, nothing happens."""
    fixture = Fixture(node, BORN_ELSEWHERE)
    for _ in range(2):
        await fixture.hold(configuration(5, learner(1, 5)))
    assert fixture.record() == ReplicaRecord(GROUP, ReplicaId(1, 5), ReplicaState.ACTIVE)
    assert node.host.replica(GROUP).replica_id == ReplicaId(1, 5)


async def test_an_unknown_topic_is_no_reason_to_do_anything(node: Node) -> None:
    """The catalog here may lag: the leader asks again, and then it works."""
    fixture = Fixture(node, BORN_ELSEWHERE)
    fixture.catalog.knows = False
    await fixture.refuses(configuration(5, learner(1, 5)), "unknown-topic")
    assert fixture.record() is None
    fixture.catalog.knows = True
    await fixture.hold(configuration(5, learner(1, 5)))


async def test_a_voter_of_which_nothing_is_known_is_not_made_up(node: Node) -> None:
    """It would have forgotten its vote (safety 2). Nor does a configuration without this agent make one."""
    fixture = Fixture(node, BORN_ELSEWHERE)
    await fixture.refuses(configuration(5, Replica(ReplicaId(1, 5), SELF)), "damaged")
    await fixture.refuses(configuration(5), "bad-request")
    assert fixture.record() is None


async def test_a_replica_added_again_takes_the_place_of_the_one_removed(node: Node) -> None:
    """The old one's data and vote go first; a late order for it, or for an older one, is refused."""
    fixture = Fixture(node, BIRTH)
    await node.open(BIRTH)
    (fixture.directory / "witness").write_text("of the old replica")
    await fixture.hold(configuration(9, learner(2, 9)))
    assert fixture.record() == ReplicaRecord(GROUP, ReplicaId(2, 9), ReplicaState.ACTIVE)
    assert not (fixture.directory / "witness").exists()
    await fixture.refuses(configuration(4, learner(1, 4)), "bad-request")
    assert fixture.record() == ReplicaRecord(GROUP, ReplicaId(2, 9), ReplicaState.ACTIVE)


async def test_a_replica_of_another_history_stays_until_it_is_proved_gone(node: Node) -> None:
    """Two replicas were forced to go on alone: what one of them says of the group is older than what the
    replica here was added by, so that it rules nothing out. An answer, and no failed assertion."""
    fixture = Fixture(node, BORN_ELSEWHERE)
    await fixture.hold(configuration(7, learner(1, 7)))
    await fixture.refuses(configuration(5, learner(1 << 40, 5)), "bad-request")
    assert node.host.replica(GROUP).replica_id == ReplicaId(1, 7)


async def test_a_removed_replica_deletes_itself_and_never_comes_back(node: Node) -> None:
    """Somebody claims a newer configuration without this agent; only the committed one that it is shown then
    decides (safety 4). Its id stays known, so that its birth does not bring it back, whatever restarts."""
    fixture = Fixture(node, BIRTH)
    await node.open(BIRTH)
    looking = asyncio.create_task(fixture.holding.run())
    fixture.claim(7, OTHER, THIRD)
    await until(lambda: fixture.peers.asked)
    assert node.host.has(GROUP)  # it could not say
    fixture.peers.answer = configuration(7).to_bytes()
    await until(lambda: fixture.record() == ReplicaRecord(GROUP, ReplicaId(0, 0), ReplicaState.REMOVED))
    await until(lambda: not fixture.directory.exists())
    looking.cancel()
    assert not node.host.has(GROUP)
    await fixture.refuses(configuration(6, Replica(ReplicaId(0, 0), SELF)), "bad-request")
    with pytest.raises(UnknownReplica):
        await node.open(BIRTH)
    await node.stop()
    await node.start()
    with pytest.raises(UnknownReplica):
        await node.open(BIRTH)
    await node.open(BIRTH, replica_id=ReplicaId(2, 9))


async def test_a_disk_that_fails_meanwhile_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that cannot be deleted is no reason for the agent to end."""
    fixture = Fixture(node, BIRTH)
    await node.open(BIRTH)
    fixture.claim(7, OTHER, THIRD)
    fixture.peers.answer = configuration(7).to_bytes()
    retire, faults = node.host.retire_group, [OSError("the disk says no")]

    async def fail_once(group: GroupId) -> None:
        if faults:
            raise faults.pop()
        await retire(group)

    monkeypatch.setattr(node.host, "retire_group", fail_once)
    looking = asyncio.create_task(fixture.holding.run())
    await until(lambda: not node.host.has(GROUP))
    looking.cancel()


async def test_an_agent_whose_register_failed_says_that_it_takes_no_replica(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its next start: an error would be asked about again for minutes."""
    fixture = Fixture(node, BORN_ELSEWHERE)

    async def fail(*_: object, **__: object) -> None:
        raise PairedFileError("the disk failed")

    monkeypatch.setattr(fixture.catalog, "open_replica", fail)
    payload = encode_hold(GROUP, configuration(5, learner(1, 5)), caught_up=False)
    assert await fixture.holding.on_hold(OTHER, payload) == b"the disk failed"
    assert not node.host.has(GROUP)


async def test_a_crash_in_the_middle_of_a_removal_is_made_up_for(node: Node) -> None:
    """The registry says removed, the files are still there."""
    fixture = Fixture(node, BIRTH)
    await node.open(BIRTH)
    await node.registry.put(ReplicaRecord(GROUP, ReplicaId(0, 0), ReplicaState.REMOVED))
    await node.stop()
    await node.start()
    assert fixture.directory.exists()
    await node.host.finish_retirements()
    assert not fixture.directory.exists()
    assert node.hard_states.get(GROUP) is None
    await node.host.finish_retirements()


async def test_claims_alone_delete_nothing(node: Node) -> None:
    """A committed configuration that has this replica, or one from before it was added, proves nothing."""
    fixture = Fixture(node, BORN_ELSEWHERE)
    await fixture.hold(configuration(5, learner(1, 5)))
    fixture.claim(7, OTHER, THIRD)
    looking = asyncio.create_task(fixture.holding.run())
    for answer in (configuration(4), configuration(8, learner(1, 5))):
        fixture.peers.answer = answer.to_bytes()
        asked = fixture.peers.asked
        await until(lambda seen=asked: fixture.peers.asked > seen + 1)
        assert node.host.has(GROUP)
    looking.cancel()


async def test_only_so_many_copies_at_a_time(node: Node) -> None:
    """The others wait until one has caught up."""
    fixture = Fixture(node, BORN_ELSEWHERE)
    groups = [GroupId(GROUP.topic_id, number) for number in range(9)]
    given = configuration(5, learner(1, 5))
    for group in groups[:8]:
        await fixture.hold(given, group)
    await fixture.refuses(given, "overloaded", groups[8])
    await fixture.hold(given, groups[3], caught_up=True)
    await fixture.hold(given, groups[8])


async def test_the_committed_configuration_is_told(node: Node) -> None:
    """Of a group that is here; nothing of another."""
    fixture = Fixture(node, BIRTH)
    assert await fixture.holding.on_ask(OTHER, GROUP.to_bytes()) == b""
    await node.open(BIRTH)
    assert Configuration.from_bytes(await fixture.holding.on_ask(OTHER, GROUP.to_bytes())) == BIRTH
    with pytest.raises(PeerMessageError):
        await fixture.holding.on_ask(OTHER, b"?")


@pytest.mark.parametrize(
    ("replica_id", "given", "removed"),
    [
        (ReplicaId(0, 0), configuration(1), True),
        (ReplicaId(0, 1), configuration(1), False),  # OTHER's: still there
        (ReplicaId(0, 7), configuration(0), False),  # the birth itself
        (ReplicaId(2, 9), configuration(9), False),
        (ReplicaId(2, 9), configuration(8), False),
        (ReplicaId(2, 9), configuration(10), True),
        (ReplicaId(0, BIRTH_ORDINALS), configuration(1), False),  # of a later birth
        (ReplicaId(0, 0), configuration(9, learner(1 << EPOCH_BITS, 9)), True),  # recovered by force
    ],
)
def test_what_proves_a_removal(replica_id: ReplicaId, given: Configuration, *, removed: bool) -> None:
    """A committed configuration from after the replica was added, without it."""
    assert is_removed(ReplicaRecord(GROUP, replica_id, ReplicaState.ACTIVE), given) is removed


async def test_a_replica_of_a_birth_that_was_given_up_goes_first(node: Node) -> None:
    """By what the catalog says, not by what the present group does: then a new one may be held."""
    fixture = Fixture(node, BIRTH)
    await node.open(BIRTH, awaits_birth=True)
    later = Configuration.birth((OTHER, THIRD), 1)
    added = ReplicaId(1 << GENERATION_TERM_BITS | 2, 5)
    asked = Configuration(LogIndex(5), (*later.replicas, Replica(added, SELF, learner=True)))
    await fixture.refuses(asked, "not-ready")
    assert fixture.record() == ReplicaRecord(GROUP, ReplicaId(0, 0), ReplicaState.ACTIVE)
    assert await node.host.newborns.give_up(GROUP)
    assert not fixture.directory.exists()
    await fixture.hold(asked)
    assert fixture.record() == ReplicaRecord(GROUP, added, ReplicaState.ACTIVE)


def test_holds_as_bytes() -> None:
    """There and back; anything else is one error."""
    payload = encode_hold(GROUP, BIRTH, caught_up=True)
    assert decode_hold(payload) == (GROUP, BIRTH, True)
    for cut in range(len(payload)):
        with pytest.raises(PeerMessageError):
            decode_hold(payload[:cut])
    with pytest.raises(PeerMessageError):
        decode_hold(payload[:20] + b"\2" + payload[21:])


async def test_a_thousand_records_are_looked_at_in_turns_though_some_go_meanwhile() -> None:
    """A group whose claim says that this agent is out is found behind all others; a record that is gone when
    its turn comes is passed over."""
    number = 1_000
    groups = [GroupId(GROUP.topic_id, partition) for partition in range(number)]
    records = {group: ReplicaRecord(group, ReplicaId(1, 5), ReplicaState.ACTIVE) for group in groups}
    follows = ReplicaStatus(groups[-1], ServingState.ACTIVE, "", configuration=BIRTH)
    host: Any = SimpleNamespace(
        replica_records=lambda: iter(records.values()),
        has=lambda group: group in records,
        status=lambda group: follows._replace(group=records[group].group),
    )
    routes = RouteTable()
    holding = Assignments(
        host=host, catalog=cast("CatalogService", None), roster=cast("Roster", FakePeers()), routes=routes
    )
    out = [groups[-2], groups[-1]]
    claims = tuple((group, Claim(group, "leader", 3, 9, OTHER, (OTHER, THIRD))) for group in out)
    assert routes.apply(Delta(OTHER, "run", 0, 1, 1, False, claims))
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 2:
                del records[groups[-2]]
            await asyncio.sleep(0)

    others = asyncio.create_task(beside())
    assert await holding._excluded() == [(groups[-1], OTHER)]
    others.cancel()
    assert turns >= number // RECORDS_PER_TURN
