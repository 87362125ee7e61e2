"""What must be true once the faults have ended: everything is served, caught up and equal.

Law of this file: it looks at the agents from outside and inside, and changes nothing. What rot has damaged
must have been mended. Only a replica whose disk was exchanged may be missing: one copy of three.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from log_clients import NoAnswer, read_all
from log_history import Checker, FinalLog, Partition

from cluster_sim.invariants import InvariantViolation
from cluster_sim.node import Node
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.host.host import Host
from shoal.agent.partition.replica import Replica
from shoal.agent.topics.settings import settings_table
from shoal.format.batch import LogIndex
from shoal.replication.interfaces import MAX_GENERATION, Configuration, generation_of
from shoal.segment_store.errors import Damaged, LogClosed, OffsetOutOfRange

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

LOOK_S = 0.1
READ_BYTES = 2**20
MEND_LIMIT_S = 60.0
"""The scrubber passes every half minute."""


class Verdict:
    """See the head of this file."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._since_s = 0.0

    def begin(self) -> None:
        """The faults have just ended."""
        self._since_s = self._simulation.loop.time()

    # ---- liveness --------------------------------------------------------------------------------

    async def until_served_as_is(self, limit_s: float) -> None:
        """Every partition takes an append of which a majority of voters work, whatever is broken elsewhere.
        Before that every agent is ready whose disk works, unless the catalog is what is broken, or a majority
        of a group without which a replica there that is lost, or damaged like all others that had the entry,
        cannot be replaced or mended."""
        loop = self._simulation.loop
        end_s = loop.time() + limit_s
        while self._waiting() and loop.time() < end_s:
            await asyncio.sleep(LOOK_S)
        await self._until(lambda: self._unready() or self._unserved(self._able()), limit_s)

    def _waiting(self) -> list[str]:
        broken = self._simulation.disk_faults
        nodes = [node for node in self._simulation.nodes if node.address not in broken]
        waiting = [node for node in nodes if not node.is_ready]
        able = self._able() if waiting else set()
        return [
            node.name
            for node in waiting
            if node.host is None or able.issuperset([*_hopeless(node.host), *self._unmendable(node)])
        ]

    def _unmendable(self, node: Node) -> list[GroupId]:
        """Replicas there that wait for an entry which no working replica has. Whether it was committed, only
        a majority can say."""
        replicas, found = self._replicas(), []
        for group, damaged in node.host.log_repair._waiting.items():
            wanted = damaged.damage[0].first_index
            holders = [item for other, item in replicas.get(group, ()) if _works(other, item)]
            if not any(item.log.first_index <= wanted <= item.log.last_index for item in holders):
                found.append(group)
        return found

    def _unready(self) -> str | None:
        waiting = self._waiting()
        return f"{waiting} are not ready" if waiting and CATALOG_GROUP in self._able() else None

    async def until_caught_up_as_is(self, limit_s: float) -> None:
        """Every such group is led, and whoever works has all that is committed now: clients go on."""
        goals = {
            group: max((item.core.commit_index for _, item in held if not item.is_unborn), default=0)
            for group, held in self._replicas().items()
        }
        await self._until(lambda: self._short_of(goals), limit_s)

    def _short_of(self, goals: dict[GroupId, LogIndex]) -> str | None:
        replicas = self._replicas()
        for group in sorted(self._able() & set(self._wanted_groups())):
            working = [(node, item) for node, item in replicas[group] if _works(node, item)]
            if not any(replica.serves for _, replica in working):
                return f"{group} is not led: {[item.core for _, item in working]}"
            for node, replica in working:
                if replica.core.commit_index < goals.get(group, 0):
                    return f"{group}: {node.name} {replica.core!r} is not at {goals[group]}"
        return None

    async def until_served(self, limit_s: float) -> None:
        """Every partition takes an append, and so does every producer's next one."""
        await self._until(lambda: self._unserved(None) or self._unanswered(), limit_s)

    def _unserved(self, groups: set[GroupId] | None) -> str | None:
        """`groups`: those that are asked for; None: all."""
        served = {
            item.partition
            for item in self._simulation.history.appends
            if item.outcome == "ok" and item.invoked_at > self._since_s
        }
        wanted = {("events", number) for number in range(self._simulation.knobs.partitions)}
        if groups is not None:
            wanted &= {("events", group.partition) for group in groups if self._is_of_events(group)}
        missing = wanted - served
        return f"{len(missing)} partitions take no append" if missing else None

    def _is_of_events(self, group: GroupId) -> bool:
        return any(
            catalog.topics["events"].topic_id == group.topic_id
            for _, catalog in self._catalogs()
            if "events" in catalog.topics
        )

    def _unanswered(self) -> str | None:
        """Whoever sends sequences is recognised for as long as it is there, and never refused for good."""
        answered = {
            item.producer
            for item in self._simulation.history.appends
            if item.outcome == "ok" and item.completed_at > self._since_s
        }
        missing = [item.name for item in self._simulation.producers if item.name not in answered]
        return f"producers {missing} are not answered" if missing else None

    def _able(self) -> set[GroupId]:
        """Groups of which a majority of the voters work, by the newest configuration that any replica has."""
        found = set()
        for group, held in self._replicas().items():
            working = {(node.agent.agent_id, item.replica_id) for node, item in held if _works(node, item)}
            newest = max((item.core.configuration for _, item in held), key=_place_of)
            voters = [item for item in newest.replicas if not item.learner]
            able = [item for item in voters if (item.agent_id, item.id) in working]
            if 2 * len(able) > len(voters):
                found.add(group)
        if CATALOG_GROUP in found:
            return found
        # A birth serves once the catalog has taken that it is led, which needs a majority there.
        replicas = self._replicas()
        return {group for group in found if not all(item.is_unborn for _, item in replicas[group])}

    async def until_caught_up(self, limit_s: float) -> None:
        """Every group is led, every voter has everything, and every agent knows the same."""
        await self._until(self._behind, limit_s)

    async def _until(self, complaint: Any, limit_s: float) -> None:
        loop = self._simulation.loop
        end_s = loop.time() + limit_s
        while (said := complaint()) is not None:
            if loop.time() > end_s:
                raise InvariantViolation("Liveness", f"{said}, {limit_s:g} s after the faults")
            await asyncio.sleep(LOOK_S)

    def _behind(self) -> str | None:
        for node in self._simulation.nodes:
            if not node.is_running or node.agent is None or not node.is_ready:
                return f"{node.name} is not ready ({node.ended}, {self._why(node)})"
        differs = self._members_differ() or self._catalogs_differ()
        return differs or self._groups_behind() or self._factor_differs()

    def _factor_differs(self) -> str | None:
        """Each partition whose replication factor was changed has the voters that it wants last, of the
        agents that there are, and no learners but those of `all`. A host whose disk failed may be passed
        over for minutes."""
        simulation = self._simulation
        if not simulation.alters:
            return None
        _, catalog = next(self._catalogs())
        entry = catalog.topics["events"]
        agents, broken = len(simulation.nodes), len(simulation.disk_faults)
        wanted = entry.settings.wanted_replicas(agents)
        everywhere = entry.settings.replication_factor == "all"
        for group, held in self._replicas().items():
            if group.topic_id != entry.topic_id:
                continue
            configuration = next(item.core.configuration for _, item in held if item.serves)
            voters, replicas = len(configuration.voters), len(configuration.replicas)
            holders = agents if everywhere else wanted
            if not min(wanted, agents - broken) <= voters <= wanted or replicas < holders - broken:
                return f"{group} wants {wanted} voters and {holders} holders of {agents}: {configuration}"
            if replicas > holders:
                return f"{group} has learners that it does not need: {configuration}"
        return None

    @staticmethod
    def _why(node: Node) -> str:
        if not node.is_running or node.agent is None or not hasattr(node.agent, "broker"):
            return "not running"
        return str(node.agent.broker.readiness()[1])

    def _members_differ(self) -> str | None:
        ids = {node.agent.agent_id for node in self._simulation.nodes if node.agent is not None}
        for node in self._simulation.nodes:
            assert node.agent is not None
            alive = {member.name for member in node.agent.node.roster.members() if member.status == "alive"}
            if alive != ids:
                return f"{node.name} sees {len(alive)} alive, not {len(ids)}"
        return None

    def _catalogs(self) -> Iterator[tuple[Node, Any]]:
        for node in self._simulation.nodes:
            assert node.agent is not None
            if hasattr(node.agent, "broker"):  # it has come so far
                yield node, node.agent.broker._catalog

    def _catalogs_differ(self) -> str | None:
        versions = {node.name: catalog.version for node, catalog in self._catalogs()}
        return None if len(set(versions.values())) == 1 else f"catalogs differ: {versions}"

    def _replicas(self) -> dict[GroupId, list[tuple[Node, Replica]]]:
        found: dict[GroupId, list[tuple[Node, Replica]]] = {}
        for node in self._simulation.nodes:
            host = node.host
            for group, entry in () if host is None else host._groups.items():
                found.setdefault(group, []).append((node, entry.replica))
        return found

    def _wanted_groups(self) -> list[GroupId]:
        _, catalog = next(self._catalogs())
        return [CATALOG_GROUP] + [
            GroupId(entry.topic_id, partition)
            for entry in catalog.topics.values()
            for partition in range(len(entry.partitions))
        ]

    def _groups_behind(self) -> str | None:
        replicas = self._replicas()
        for group in self._wanted_groups():
            held = replicas.get(group, [])
            leaders = [replica for _, replica in held if replica.serves]
            if not leaders:
                return f"{group} is not led"
            leader = max(leaders, key=lambda replica: replica.core.term)
            said = self._voters_behind(group, leader, held)
            if said is not None:
                return said
        return None

    def _voters_behind(self, group: GroupId, leader: Replica, held: list[tuple[Node, Replica]]) -> str | None:
        """Learners too: they are on their way to a vote."""
        configuration: Configuration = leader.core.configuration
        agents = {node.agent.agent_id: node for node in self._simulation.nodes if node.agent is not None}
        if leader.core.commit_index < leader.core.last_index:
            return f"{group}: {leader.core!r} has not committed everything"
        for member in configuration.replicas:
            node = agents.get(member.agent_id)
            if node is None:
                continue
            mine = [replica for other, replica in held if other is node and replica.replica_id == member.id]
            if not mine:
                return f"{group}: {node.name} does not hold {member}"
            core = mine[0].core
            if mine[0].failure is not None:
                return f"{group}: {node.name} has failed: {mine[0].failure}"
            if (core.term, core.commit_index) != (leader.core.term, leader.core.commit_index):
                return f"{group}: {node.name} {core!r} is behind {leader.core!r}"
        return None

    # ---- the verdict -----------------------------------------------------------------------------

    async def judge(self) -> None:
        """Raises InvariantViolation."""
        await self._same_bytes()
        self._same_tables()
        self._topics_are_right()
        self._settings_are_right()
        await self._read_everything()
        anomalies = Checker(self._simulation.history).anomalies()
        if anomalies:
            raise InvariantViolation("History", " | ".join(map(str, anomalies)))

    async def _same_bytes(self) -> None:
        """SameCommittedPrefix: replicas of one log are equal, frame by frame (safety 12)."""
        for group, held in self._replicas().items():
            healthy = [replica for _, replica in held if replica.failure is None]
            while len(healthy) > 1:
                first = max(replica.log.first_index for replica in healthy)
                last = min(min(replica.core.commit_index, replica.log.last_index) for replica in healthy)
                digests = await _digests(healthy, first, last)
                if digests is None:
                    continue  # the log is shorter now
                if len(set(digests.values())) > 1:
                    raise InvariantViolation("SameCommittedPrefix", f"{group} {first} to {last}: {digests}")
                break

    def _same_tables(self) -> None:
        """SameTables: whoever folds the same entries knows the same producers (safety 18), however often its
        log was cut on the way."""
        for group, held in self._replicas().items():
            tables: dict[int, dict[bytes, str]] = {}
            for node, replica in held:
                if replica.failure is None and replica.state.tail.last_index == replica.core.commit_index:
                    table = replica.state.producers.to_bytes()
                    tables.setdefault(replica.core.commit_index, {})[table] = node.name
            if any(len(found) > 1 for found in tables.values()):
                differing = [list(found.values()) for found in tables.values()]
                raise InvariantViolation("SameTables", f"{group}: {differing} know other producers")

    def _topics_are_right(self) -> None:
        """Topics that were created for certain are there, deleted ones are not; at every agent."""
        topics = self._simulation.topics
        for node, catalog in self._catalogs():
            missing = topics.present - set(catalog.topics)
            back = topics.absent & set(catalog.topics)
            if missing or back:
                raise InvariantViolation("TopicsAreKept", f"{node.name}: missing {missing}, back {back}")

    def _settings_are_right(self) -> None:
        """AlterationsAreKept: each setting is what was committed last, and of two changes at once none undid
        the other."""
        if not self._simulation.alters:
            return
        for node, catalog in self._catalogs():
            table = {row["name"]: row["value"] for row in settings_table(catalog.topics["events"].settings)}
            wrong = self._simulation.alterations.unexplained(table)
            if wrong:
                raise InvariantViolation("AlterationsAreKept", f"{node.name}: {'; '.join(wrong)}")

    async def _read_everything(self) -> None:
        """From the leader through some agent, one partition record by record; from every replica."""
        simulation = self._simulation
        by_record = simulation.rng.randrange(simulation.knobs.partitions)
        await self._read_queues()
        for number in range(simulation.knobs.partitions):
            partition = ("events", number)
            asked = simulation.rng.choice(simulation.nodes)
            finals = [await self._read_one(asked, partition, local=False, arrow=number != by_record)]
            for node in simulation.nodes:
                if self._holds(node, number):
                    finals.append(await self._read_one(node, partition, local=True, arrow=True))
            simulation.history.finals += finals

    async def _read_queues(self) -> None:
        """What groups worked on, at the leaders."""
        simulation = self._simulation
        if not simulation.queues.is_on:
            return
        asked = simulation.rng.choice(simulation.nodes)
        places = simulation.queues.places()
        finals = [await self._read_one(asked, place, local=False, arrow=True) for place in places]
        simulation.history.finals += finals
        simulation.queues.judge(finals)

    async def _read_one(self, node: Node, partition: Partition, *, local: bool, arrow: bool) -> FinalLog:
        """Damage that nobody has read before is found now, and gets its time to be mended."""
        end_s = self._simulation.loop.time() + MEND_LIMIT_S
        while True:
            try:
                return await read_all(node.http, partition, local=local, arrow=arrow)
            except (NoAnswer, AssertionError) as error:
                if '"damaged"' not in str(error) or self._simulation.loop.time() > end_s:
                    raise InvariantViolation("Liveness", f"final read at {node.name}: {error}") from None
                await asyncio.sleep(LOOK_S)

    def _holds(self, node: Node, number: int) -> bool:
        """A voter without a fault; a learner may be anywhere on its way."""
        _, catalog = next(self._catalogs())
        group = GroupId(catalog.topics["events"].topic_id, number)
        host = node.host
        entry = None if host is None else host._groups.get(group)
        if entry is None or entry.replica.failure is not None:
            return False
        mine = entry.replica.core.configuration.find(entry.replica.replica_id)
        return mine is not None and not mine.learner


def _place_of(configuration: Configuration) -> tuple[int, LogIndex]:
    """Later births, and later changes of one, are greater."""
    generations = (generation_of(item.id) for item in configuration.replicas)
    return max(MAX_GENERATION if item is None else item for item in generations), configuration.index


def _hopeless(host: Host) -> set[GroupId]:
    """Groups whose replica there never votes again: only the group's leader can have it replaced."""
    return {record.group for record in host.beyond_repair()}


def _works(node: Node, replica: Replica) -> bool:
    return node.is_running and replica.failure is None


async def _digests(replicas: list[Replica], first: LogIndex, last: LogIndex) -> dict[str, str] | None:
    """By replica; None when retention took some of it meanwhile."""
    digests = {}
    for replica in replicas:
        try:
            digests[str(replica.replica_id)] = await _digest(replica, first, last)
        except LogClosed:
            continue  # it has just been moved to another agent
        except OffsetOutOfRange:
            return None
    return digests


async def _digest(replica: Replica, first: LogIndex, last: LogIndex) -> str:
    digest = hashlib.sha256()
    index = first
    end_s = asyncio.get_running_loop().time() + MEND_LIMIT_S
    while index <= last:
        try:
            frames = await replica.log.read(index, last, READ_BYTES)
        except Damaged as error:
            if asyncio.get_running_loop().time() > end_s:
                raise InvariantViolation("Liveness", f"not mended in time: {error}") from None
            await asyncio.sleep(LOOK_S)
            continue
        for frame in frames:
            digest.update(frame.data)
        index = LogIndex(frames[-1].stamp.index + 1)
    return digest.hexdigest()[:16]
