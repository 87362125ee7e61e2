"""The replicas that this agent was not born with, and those that it has to give up.

Law of this file: a committed configuration of the group decides, which its leader sends (hold) or another
holder is asked for. A new replica that it names here is opened, under that id and no other. A replica here
that it is without is gone for ever, with its data (safety 2, 4). For a topic that the catalog here does not
know yet nothing is done: the leader asks again.
"""

from __future__ import annotations

import logging

from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.durable.paired_file import PairedFileError, PairedFileFull
from shoal.agent.host.host import Host
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.members.roster import Roster
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, decode_group, decode_hold, encode_lost
from shoal.agent.process.clock import by_turns, repeat
from shoal.agent.routing.table import RouteTable
from shoal.agent.topics.catalog_service import CatalogService
from shoal.errors import ShoalError
from shoal.replication.errors import WireError
from shoal.replication.interfaces import Configuration, Replica, generation_of
from shoal.replication.roles.transitions import Role
from shoal.segment_store.errors import StoreError

LOOK_INTERVAL_S = 1.0
ASK_TIMEOUT_MS = 2_000
MAX_ASKED_PER_LOOK = 64  # the rest a second later
RECORDS_PER_TURN = 64  # of the loop: less than a millisecond of work
MAX_FILLING = 8
"""Replicas here that copy their log at the same time: an agent that has just joined must not be flooded."""
DISK_FAULTS = (OSError, StoreError, PairedFileError)

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


class Assignments:
    """One per agent; run() for its life."""

    def __init__(
        self,
        *,
        host: Host,
        catalog: CatalogService,
        roster: Roster,
        routes: RouteTable,
    ) -> None:
        self._agent_id = roster.agent_id
        self._host = host
        self._catalog = catalog
        self._roster = roster
        self._routes = routes
        self._looked_at = -1
        self._filling: set[GroupId] = set()

    async def run(self) -> None:
        """Find replicas that are out of their groups, until cancelled."""
        try:
            async with self._catalog.changing:
                await self._host.finish_retirements()
        except DISK_FAULTS as error:
            logger.warning("cannot delete the rest of removed replicas before the next start: %s", error)
        await repeat(LOOK_INTERVAL_S, self._look)

    async def _look(self) -> None:
        await self._tell_losses()
        version = self._routes.version
        if version != self._looked_at:  # nothing is claimed anew: nothing to look for
            excluded = await self._excluded()
            self._looked_at = -1 if excluded else version
            for group, holder in excluded[:MAX_ASKED_PER_LOOK]:
                await self._ask(group, holder)

    # ---- requests of peers -----------------------------------------------------------------------

    async def on_hold(self, _peer: str, payload: bytes) -> bytes:
        """A group's leader says that a committed configuration names this agent. The answer is empty, or says
        why this agent can keep no replica: the leader tries another one. Raises ShoalError when
        nothing can be opened yet; the leader asks again until its configuration is another one."""
        group, configuration, caught_up = decode_hold(payload)
        mine = next((item for item in configuration.replicas if item.agent_id == self._agent_id), None)
        async with self._catalog.changing:
            try:
                await self._retire_if_removed(group, configuration)
                if mine is None:
                    raise ShoalError("bad-request", "that configuration does not name this agent")
                if not self._has(group, mine):
                    await self._open(group, mine)
            except PairedFileError as error:
                until = "the disk has room" if isinstance(error, PairedFileFull) else "it is restarted"
                seldom.error("%s: this agent takes no replica until %s: %s", group, until, error)
                return str(error).encode()
        if caught_up or not mine.learner:
            self._filling.discard(group)
        return b""

    async def on_ask(self, _peer: str, payload: bytes) -> bytes:
        """The committed configuration of a group held here; empty when this agent cannot say."""
        configuration = self._host.committed_configuration(decode_group(payload))
        return b"" if configuration is None else configuration.to_bytes()

    # ---- opening ---------------------------------------------------------------------------------

    def _has(self, group: GroupId, mine: Replica) -> bool:
        """Whether that very replica is here. Raises ShoalError when it must never be here again, or when the
        configuration does not rule out another one that is here."""
        record = self._host.replica_record(group)
        if record is not None and record.state is not ReplicaState.REMOVED:
            generations = {generation_of(record.replica_id), generation_of(mine.id)}
            if len(generations) > 1 and None not in generations:
                raise ShoalError(
                    "not-ready", "the replica here is of a birth that was given up: it goes first"
                )
        if record is None or record.replica_id < mine.id:
            if self._host.has(group):
                raise ShoalError(
                    "bad-request", "another replica of the group is here, and nothing says that it is out"
                )
            return False
        if record.replica_id != mine.id or record.state is ReplicaState.REMOVED:
            raise ShoalError("bad-request", f"replica {mine.id} was removed from its group, as known here")
        return self._host.has(group)

    async def _open(self, group: GroupId, mine: Replica) -> None:
        if not mine.learner and self._host.replica_record(group) is None:
            raise ShoalError("damaged", "this agent knows nothing of a replica that votes")
        self._filling = {item for item in self._filling if self._is_filling(item)}
        if group != CATALOG_GROUP and len(self._filling) >= MAX_FILLING:
            raise ShoalError("overloaded", f"{MAX_FILLING} replicas are being copied to this agent already")
        await self._catalog.open_replica(group, mine.id)
        self._filling.add(group)
        logger.debug("%s: this agent holds a replica now, with id %s", group, mine.id)

    def _is_filling(self, group: GroupId) -> bool:
        """It is here and no voter yet; the entry that names it may not have arrived."""
        configuration = self._host.status(group).configuration if self._host.has(group) else None
        return configuration is not None and self._agent_id not in configuration.voting_agents

    # ---- lost replicas ---------------------------------------------------------------------------

    async def _tell_losses(self) -> None:
        """To the leaders of their groups, until a replica that need not remember takes the place."""
        for record in self._host.beyond_repair()[:MAX_ASKED_PER_LOOK]:
            claims = self._routes.claims_about(record.group)
            leaders = (holder for holder, claim in claims.items() if claim.role == "leader")
            leader = next((holder for holder in leaders if holder != self._agent_id), None)
            if leader is None:
                continue
            payload = encode_lost(record.group, record.replica_id)
            try:
                await self._roster.request(leader, PeerMessage.GROUP_LOST, payload, ASK_TIMEOUT_MS)
            except (PeerUnavailable, PeerRequestFailed) as error:
                seldom.info(
                    "%s: cannot tell %s of the lost replica: %s", record.group, agent_name(leader), error
                )
            await self._ask(record.group, leader)

    # ---- giving up -------------------------------------------------------------------------------

    async def _excluded(self) -> list[tuple[GroupId, str]]:
        """Groups with a claim of a newer configuration without this agent, and the claim's holder."""
        found = []
        async for record in by_turns(list(self._host.replica_records()), RECORDS_PER_TURN):
            if record.state is ReplicaState.REMOVED or not self._host.has(record.group):
                continue
            status = self._host.status(record.group)
            if status.role is Role.LEADER:
                continue
            known = -1 if status.configuration is None else status.configuration.index
            for holder, claim in self._routes.claims_about(record.group).items():
                without = self._agent_id not in claim.voters and self._agent_id not in claim.learners
                if holder != self._agent_id and without and claim.configuration_index > known:
                    found.append((record.group, holder))
                    break
        return found

    async def _ask(self, group: GroupId, holder: str) -> None:
        try:
            answer = await self._roster.request(
                holder, PeerMessage.GROUP_CONFIGURATION, group.to_bytes(), ASK_TIMEOUT_MS
            )
            if answer:
                async with self._catalog.changing:
                    await self._retire_if_removed(group, Configuration.from_bytes(answer))
        except (PeerUnavailable, PeerRequestFailed, WireError) as error:
            seldom.info("%s: %s does not know the replicas: %s", group, agent_name(holder), error)
        except DISK_FAULTS as error:
            seldom.warning("%s: cannot delete the removed replica here, trying again: %s", group, error)

    async def _retire_if_removed(self, group: GroupId, configuration: Configuration) -> None:
        """configuration: a committed one."""
        record = self._host.replica_record(group)
        if record is None or record.state is ReplicaState.REMOVED or not is_removed(record, configuration):
            return
        logger.info("%s: replica %s was removed from its group: deleting it", group, record.replica_id)
        self._filling.discard(group)
        await self._host.retire_group(group)


def is_removed(record: ReplicaRecord, configuration: Configuration) -> bool:
    """Whether a committed configuration proves that this replica is out of its group, for ever. One from
    before the replica was added proves nothing."""
    generations = {generation_of(item.id) for item in configuration.replicas}
    if not generations & {None, generation_of(record.replica_id)}:
        return False  # of another birth of the partition: the catalog says which of them is given up
    added_at = record.replica_id.index if record.replica_id.term > 0 else 0
    return configuration.index > added_at and configuration.find(record.replica_id) is None
