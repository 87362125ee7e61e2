"""What may take the place of a replica's log, and which term and vote it has then (safety 3 and 27)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from memory_disk import MemoryDisk

from shoal.agent.durable.identity import HardStateFile, ReplicaRegistry
from shoal.agent.host.copy_target import CopyTarget
from shoal.agent.partition.opener import Stores, Work, open_replica
from shoal.agent.partition.plan import Plan
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.state.log_state import PartitionState
from shoal.agent.peers.entry_messages import CopyOffer, Piece, decode_wanted, encode_offer, encode_piece
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.process.clock import SystemClock
from shoal.agent.views.upkeep.view_set import ViewSet
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Flag,
    Frame,
    Kind,
    LogIdentity,
    LogIndex,
    Offset,
    Term,
    control_frame,
)
from shoal.replication.interfaces import Configuration, HardState, ReplicaId
from shoal.segment_store.config import LogConfig
from tests.agent.harness import CLUSTER, GROUP, RAFT

BIRTH = Configuration.birth(("1" * 32, "2" * 32, "3" * 32))
SENDER = "2" * 32
SENDER_ID = ReplicaId(0, 1)
VOTED_FOR = ReplicaId(0, 2)
PLAN = Plan(GROUP, BIRTH, DEFAULT_SCHEMA, LogConfig())


class OneReplica:
    """What a replica asks of its host, and an target of the host: one group, and no network."""

    agent_id = "1" * 32
    clock = SystemClock()
    raft_config = RAFT

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.opened: Replica
        self.was_replaced = False

    async def open(self) -> None:
        self.opened = await open_replica(self._stores, self, PLAN, random.Random(1))  # type: ignore[arg-type]

    def replica(self, _: Any) -> Replica:
        return self.opened

    def send_append(self, agent_id: str, pieces: list[Any]) -> None:
        """There is no network."""

    async def reopen(self, _: Any, work: Work) -> None:
        await self.opened.close("opened anew")
        self.was_replaced = True
        await work()
        await self.open()


class Sender:
    """A peer that lends its log, and says what it knows each time."""

    def __init__(self, frames: Sequence[Frame], pieces: Sequence[Piece]) -> None:
        self._frames = frames
        self._pieces = list(pieces)

    def handle_request(self, kind: PeerMessage, handler: Any) -> None:
        """Nobody asks this one."""

    async def request(self, _peer: str, kind: PeerMessage, payload: bytes, _timeout_ms: int) -> bytes:
        """One entry at a time."""
        assert kind is PeerMessage.SEGMENTS_PIECE
        _, wanted = decode_wanted(payload)
        return encode_piece(self._pieces.pop(0), [self._frames[wanted.first_index - 1].data])


def frames(identity: LogIdentity, *terms: int) -> list[Frame]:
    """A log of entries without records, of these terms; the first is a checkpoint."""
    made: list[Frame] = []
    state = PartitionState(BIRTH)
    for number, term in enumerate(terms):
        frame = control_frame(
            DEFAULT_SCHEMA,
            identity,
            kind=Kind.NOOP if number else Kind.CHECKPOINT,
            control=b"" if number else state.checkpoint().to_bytes(),
            base_offset=Offset(0),
            term=Term(term),
            previous_term=Term(terms[number - 1] if number else 0),
            index=LogIndex(number + 1),
            append_time_us=0,
            flags=Flag.NONE if number else Flag.FIRST_OF_SEGMENT,
        )
        state.append(frame)
        made.append(frame)
    return made


async def host_with(*terms: int, vote: ReplicaId | None = None) -> tuple[OneReplica, Stores]:
    """A replica whose log has entries of these terms; it is in the last one's, and has voted there."""
    disk = MemoryDisk(random.Random(1))
    await disk.make_directory("data")
    registry = await ReplicaRegistry.open(disk, "data")
    stores = Stores(disk, "data", CLUSTER, registry, await HardStateFile.open(disk, "data"))
    host = OneReplica(stores)
    await host.open()
    replica = host.opened
    await replica.log.append(frames(replica.identity, *terms))
    await replica.close("the test is over")
    await stores.hard_states.save(GROUP, replica.replica_id, HardState(Term(terms[-1]), vote, LogIndex(1)))
    await host.open()
    return host, stores


async def copy(host: OneReplica, stores: Stores, sender: Sender, offered_in: int) -> None:
    """An offer of a log that begins beyond everything here is made, and what comes of it awaited."""
    views = ViewSet(stores, sender, host.clock.now_ms, lambda _: None, lambda: True)  # type: ignore[arg-type]
    target = CopyTarget(sender, stores, host, views)  # type: ignore[arg-type]
    offer = CopyOffer(host.opened.replica_id, SENDER_ID, Term(offered_in), LogIndex(90), Term(1))
    await target.on_offer(SENDER, encode_offer(GROUP, offer))
    # The offer was of a log that begins at 90; this one begins at 1, so that every number has its term here.
    target._jobs[GROUP].offer = offer._replace(first_index=LogIndex(1))
    for task in list(target._tasks.values()):
        await task


def terms_of(host: OneReplica) -> list[int]:
    core = host.opened.core
    return [int(core.term_at(LogIndex(index)) or 0) for index in range(1, core.last_index + 1)]


def branch(term: int, last_index: int) -> Piece:
    """Of a leader that has committed one entry."""
    return Piece(True, Term(term), LogIndex(1), LogIndex(last_index))


async def test_a_branch_of_an_older_term_never_replaces_what_a_newer_leader_was_told() -> None:
    """Entries 2 and 3 of term 3 were acknowledged here: with the leader of that term a majority has them. The
    leader of term 2 does not know yet that it is none, and lends its own entries 2 and 3."""
    host, stores = await host_with(1, 3, 3)
    identity = host.opened.identity
    host.opened.core.state.term = Term(2)  # the offer is as old as its branch, and came before term 3
    sender = Sender(frames(identity, 1, 2, 2), [branch(2, 3)] * 3)
    await _copy_while_a_term_begins(host, stores, sender, begins=Term(3), after=2)
    assert not host.was_replaced
    assert terms_of(host) == [1, 3, 3]


async def _copy_while_a_term_begins(
    host: OneReplica, stores: Stores, sender: Sender, *, begins: Term, after: int
) -> None:
    """After so many pieces this replica is in a newer term."""
    request, asked = sender.request, 0

    async def counted(*arguments: Any) -> bytes:
        nonlocal asked
        asked += 1
        if asked > after:
            host.opened.core.state.term = begins
        return await request(*arguments)

    sender.request = counted  # type: ignore[method-assign]
    await copy(host, stores, sender, 2)
    assert asked > after


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_a_copy_is_given_up_when_its_leaders_term_is_over(after: int) -> None:
    """Whenever that is: before it has told its branch, or while the branch is copied."""
    host, stores = await host_with(1, 1, 1)
    sender = Sender(frames(host.opened.identity, 1, 2, 2), [branch(2, 3)] * 3)
    host.opened.core.state.term = Term(2)
    await _copy_while_a_term_begins(host, stores, sender, begins=Term(3), after=after)
    assert not host.was_replaced
    assert terms_of(host) == [1, 1, 1]


async def test_a_branch_of_the_own_term_or_a_newer_one_is_installed() -> None:
    """What the refusals above are measured against."""
    host, stores = await host_with(1, 1)
    await copy(host, stores, Sender(frames(host.opened.identity, 1, 2, 2), [branch(2, 3)] * 3), 2)
    assert host.was_replaced
    assert terms_of(host)[:2] == [1, 2]


async def test_a_vote_is_not_carried_into_the_newer_term_of_an_installed_log() -> None:
    """It was given in term 1. In term 2 this replica has voted for nobody, and may."""
    host, stores = await host_with(1, 1, vote=VOTED_FOR)
    await copy(host, stores, Sender(frames(host.opened.identity, 1, 2, 2), [branch(2, 3)] * 3), 2)
    stored = stores.hard_states.get(GROUP)
    assert stored is not None
    assert (stored[1].term, stored[1].vote) == (2, None)
    assert (host.opened.core.term, host.opened.core.state.vote) == (2, None)


async def test_a_vote_of_the_term_of_an_installed_log_stays() -> None:
    """Whoever forgets it could vote twice in that term."""
    host, stores = await host_with(1, 2, vote=VOTED_FOR)
    await copy(host, stores, Sender(frames(host.opened.identity, 1, 2, 2), [branch(2, 3)] * 3), 2)
    assert host.was_replaced
    stored = stores.hard_states.get(GROUP)
    assert stored is not None
    assert (stored[1].term, stored[1].vote) == (2, VOTED_FOR)
