"""A partition whose majority is gone for good: one survivor goes on alone, because an operator says so.

Law of this file: nothing here happens by itself. Acknowledged records that only the lost replicas had are
lost. Records of the survivor that were never acknowledged count from now on. So it is refused while the
voters that answer could elect a leader, and where another survivor has more.

The survivor begins a new epoch: the upper bits of the term count them, so that no entry and no vote of the
old group, wherever a lost disk may turn up again, has the identity of a new one (safety 7, decision 12). It
takes a new replica id with the configuration entry that makes it the only voter; old messages name nobody
any more.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import GroupId
from shoal.agent.host.open_group import GroupHost, working_replica
from shoal.agent.log_lines.names import agent_name
from shoal.agent.partition.opener import Stores, finish_recovery
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.links import Links, PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError, decode_group
from shoal.errors import ShoalError
from shoal.format.batch import Kind, LogIndex, Term, control_frame
from shoal.replication.interfaces import Configuration, HardState, ReplicaId
from shoal.replication.interfaces import Replica as RaftReplica
from shoal.segment_store.errors import StoreError
from shoal.segment_store.log.log import PartitionLog

EPOCH_BITS = 40
"""A term is epoch << 40 | generation << 32 | elections in it: a thousand elections a second would fill one in
seven weeks. generation: of the births of a group that was never led (replication/interfaces.py)."""
ASK_TIMEOUT_MS = 2_000
_POSITION = struct.Struct("<qqqq")

logger = logging.getLogger("shoal.agent")


class Position(NamedTuple):
    """Where a replica's log ends, compared as elections compare it (section 5.4.1 of the Raft paper)."""

    last_term: Term
    last_index: LogIndex
    commit_index: LogIndex
    end_offset: int


@dataclass(frozen=True, slots=True)
class Assessment:
    """The effect of a recovery. `positions`: of the replicas that answer, by agent, this one's included.
    `silent`: voters that do not answer, or have no replica that works. `refusal`: why it must not be done, or
    None."""

    own: Position
    positions: Mapping[str, Position]
    silent: tuple[str, ...]
    refusal: str | None

    def document(self, topic: str, partition: int, names: Mapping[str, str]) -> dict[str, Any]:
        """The answer of GET and POST /v1/agent/recover. names: of agents, by id."""
        return {
            "topic": topic,
            "partition": partition,
            "log_end_offset": self.own.end_offset,
            "entries": self.own.last_index,
            "committed_entries": self.own.commit_index,
            "lost": [{"id": item, "name": names.get(item, item)} for item in self.silent],
            "refusal": self.refusal,
        }


class Recovery:
    """One per host."""

    def __init__(self, links: Links, stores: Stores, host: GroupHost) -> None:
        self._links = links
        self._stores = stores
        self._host = host
        links.handle_request(PeerMessage.GROUP_POSITION, self.on_position)

    async def on_position(self, _peer: str, payload: bytes) -> bytes:
        """Where the log of a working replica here ends. Raises ShoalError when there is none."""
        return _POSITION.pack(*_position(working_replica(self._host, decode_group(payload))))

    async def assess(self, group: GroupId) -> Assessment:
        """Ask everybody in the configuration. Raises ShoalError when this agent has no working replica."""
        replica = working_replica(self._host, group)
        own = _position(replica)
        positions = {self._host.agent_id: own}
        for item in replica.core.configuration.replicas:
            if item.agent_id not in positions:
                position = await self._ask(item.agent_id, group)
                if position is not None:
                    positions[item.agent_id] = position
        voters = [item.agent_id for item in replica.core.configuration.replicas if not item.learner]
        silent = tuple(agent_id for agent_id in voters if agent_id not in positions)
        return Assessment(own, positions, silent, _refusal(replica, voters, positions))

    async def _ask(self, agent_id: str, group: GroupId) -> Position | None:
        try:
            answer = await self._links.request(
                agent_id, PeerMessage.GROUP_POSITION, group.to_bytes(), ASK_TIMEOUT_MS
            )
            return decode_position(answer)
        except (PeerUnavailable, PeerRequestFailed, PeerMessageError) as error:
            logger.info("%s: %s has no working replica: %s", group, agent_name(agent_id), error)
            return None

    async def recover(self, group: GroupId) -> Assessment:
        """Make the replica here the only voter. Raises ShoalError recovery-refused; nothing happened then."""
        assessment = await self.assess(group)
        if assessment.refusal is not None:
            raise ShoalError("recovery-refused", assessment.refusal)
        replica = working_replica(self._host, group)
        if replica.core.leader is not None:
            raise ShoalError("recovery-refused", "the partition has a leader again")
        logger.error(
            "%s: RECOVERED BY FORCE, as an operator asked: the replica here, up to entry %d, continues alone;"
            " records that only %s had are lost",
            group,
            assessment.own.last_index,
            ", ".join(map(agent_name, assessment.silent)),
        )
        await self._host.reopen(group, lambda: self._begin_epoch(replica))
        return assessment

    async def _begin_epoch(self, replica: Replica) -> None:
        """In an order in which a crash leaves the old replica, perhaps with an entry that makes it no voter
        (the command may be repeated), or the new one."""
        stores, group = self._stores, replica.group
        stored = stores.hard_states.get(group)
        assert stored is not None
        old_id, state = stored
        term = Term((state.term >> EPOCH_BITS) + 1 << EPOCH_BITS)
        await stores.hard_states.save(group, old_id, HardState(term, None, state.commit_index))
        new_id = await self._append_configuration(replica, term)
        record = ReplicaRecord(group, new_id, ReplicaState.RECOVERING)
        await stores.registry.put(record)
        await finish_recovery(stores, record)

    async def _append_configuration(self, replica: Replica, term: Term) -> ReplicaId:
        plan = replica.plan
        log = await PartitionLog.open(
            self._stores.disk,
            self._stores.directory(replica.group),
            replica.identity,
            plan.schema,
            plan.log_config,
        )
        try:
            if log.damage:
                raise StoreError(f"the log is damaged: {log.damage[0]}")
            index = LogIndex(log.last_index + 1)
            new_id = ReplicaId(term, index)
            configuration = Configuration(index, (RaftReplica(new_id, self._host.agent_id),))
            frame = control_frame(
                plan.schema,
                replica.identity,
                kind=Kind.CONFIGURATION,
                control=configuration.to_bytes(),
                base_offset=log.end_offset,
                term=term,
                previous_term=log.last_term,
                index=index,
                append_time_us=log.next_append_time_us(self._host.clocks.now_us(self._host.clock.now_ms())),
            )
            await log.append([frame])
        finally:
            await log.close()
        return new_id


def _position(replica: Replica) -> Position:
    core, state = replica.core, replica.state
    return Position(
        core.term_at(core.last_index) or Term(0), core.last_index, core.commit_index, state.tail.end_offset
    )


def decode_position(payload: bytes) -> Position:
    """Raises PeerMessageError."""
    if len(payload) != _POSITION.size:
        raise PeerMessageError(f"a position of {len(payload)} bytes")
    last_term, last_index, commit_index, end_offset = _POSITION.unpack(payload)
    return Position(Term(last_term), LogIndex(last_index), LogIndex(commit_index), end_offset)


def _refusal(replica: Replica, voters: list[str], positions: Mapping[str, Position]) -> str | None:
    leads_alone = replica.is_unborn and not replica.core.commit_index  # from birth, and nobody has come
    if replica.core.leader is not None and not leads_alone:
        leader = replica.leader_agent_id
        return f"{agent_name(leader) if leader else 'another agent'} leads the partition: nothing is lost"
    if replica.is_unborn:
        return "nobody has led the partition yet, so it holds nothing: it is born again where agents are"
    answering = [agent_id for agent_id in voters if agent_id in positions]
    if 2 * len(answering) > len(voters):
        return f"{len(answering)} of {len(voters)} voters answer, a majority: they elect a leader themselves"
    own = positions[replica.host.agent_id]
    for agent_id, position in positions.items():
        if position[:2] > own[:2]:
            name = agent_name(agent_id)
            return f"{name} has more of the log (up to entry {position.last_index}): recover there"
    return None
