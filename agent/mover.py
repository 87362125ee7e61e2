"""Carries out replication/steps.py for every group that is led here, the catalog's among them.

Law of this file: it runs on every agent and acts only where a group is led. It watches the members, asks for
the next step, proposes it, and tells a new learner's agent to open its replica, once the configuration that
names it is committed (safety 1, 2). The core checks every step; what the receiving agent makes of it stands
in holding.py. Nothing here waits for a peer while groups wait for their turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from shoal.agent.bootstrap import catalog_voters
from shoal.agent.catalog import Catalog, TopicEntry
from shoal.agent.host import Host
from shoal.agent.identity import CATALOG_GROUP, GroupId
from shoal.agent.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peer_messages import PeerMessage, encode_hold
from shoal.agent.replica import Replica
from shoal.agent.roster import Roster, candidate_of
from shoal.agent.topic_settings import ALL_REPLICAS_VOTERS
from shoal.batch import LogIndex
from shoal.errors import ShoalError
from shoal.replication.errors import ReplicationError
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.steps import AddLearner, Group, Members, Step, apply_step, next_step

STEP_INTERVAL_S = 0.25
SETTLE_MS = 2_000  # a member seen for a shorter time may be gone again, or just being introduced
HOLD_TIMEOUT_MS = 5_000
HOLD_RETRY_MS = 1_000
STALL_MS = 60_000
"""A learner that is sent entries, and syncs none for so long, holds up its group and the head of its log."""
REFUSED_MS = 600_000
"""The same while its agent has not opened it: it may be busy with others, or not know the topic yet."""
AVOID_MS = 300_000
"""How long an agent on which a learner stalled gets no other."""
MAX_MOVES = 8
"""Groups led here that bring learners up at the same time: each copies a whole log."""

NO_REPLICAS: frozenset[ReplicaId] = frozenset()

logger = logging.getLogger("shoal.agent")


class _Learner(NamedTuple):
    group: GroupId
    replica_id: ReplicaId


class Mover:
    """run() for the agent's life."""

    def __init__(
        self,
        *,
        roster: Roster,
        host: Host,
        catalog: Callable[[], Catalog],
        now_ms: Callable[[], int],
        replace_after_ms: int,
    ) -> None:
        self._roster = roster
        self._host = host
        self._catalog = catalog
        self._now_ms = now_ms
        self._replace_after_ms = replace_after_ms
        self._seen_ms: dict[str, int] = {}
        self._lost_ms: dict[str, int] = {}
        self._goals: dict[GroupId, LogIndex] = {}
        """Of groups with learners: the commit index one interval ago, which a learner must have by now."""
        self._told: dict[_Learner, bool] = {}
        """Learners whose agents have opened them; and whether they know that they have caught up."""
        self._asked_ms: dict[_Learner, int] = {}
        self._progress: dict[_Learner, tuple[LogIndex, int]] = {}
        """What a learner had, and since when it has had no more."""
        self._avoided_ms: dict[str, int] = {}
        """Agents that took nothing, and when that was noticed."""
        self._cached_births: tuple[TopicEntry | None, tuple[tuple[str, ...], ...]] = (None, ())

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(STEP_INTERVAL_S)
                self.tick(tasks)

    def tick(self, tasks: asyncio.TaskGroup) -> None:
        """One look at everything led here. Requests to learners' agents become tasks."""
        led = self._host.led_replicas()
        members = self._observe(led)
        moving = {replica.group for replica in led if replica.core.configuration.learners}
        self._forget_all_but(led, moving)
        for replica in led:
            if (step := self._step_of(replica, members, moving, tasks)) is not None:
                self._propose(replica, step)
                if isinstance(step, AddLearner):
                    moving.add(replica.group)

    def _forget_all_but(self, led: Sequence[Replica], moving: set[GroupId]) -> None:
        """Who leads now begins anew: told twice is told once."""
        learners = {
            _Learner(replica.group, learner)
            for replica in led
            if replica.group in moving
            for learner in replica.core.configuration.learners
        }
        self._goals = {group: goal for group, goal in self._goals.items() if group in moving}
        self._told = {key: value for key, value in self._told.items() if key in learners}
        self._asked_ms = {key: value for key, value in self._asked_ms.items() if key in learners}
        self._progress = {key: value for key, value in self._progress.items() if key in learners}

    # ---- who is there ----------------------------------------------------------------------------

    def _observe(self, led: Sequence[Replica]) -> Members:
        now_ms = self._now_ms()
        placeable = self._roster.placeable()
        self._seen_ms = {member.name: self._seen_ms.get(member.name, now_ms) for member in placeable}
        self._avoided_ms = {
            agent_id: since_ms
            for agent_id, since_ms in self._avoided_ms.items()
            if now_ms - since_ms < AVOID_MS
        }
        watched = {member.name for member in self._roster.ours()}
        for replica in led:  # gossip forgets who has been gone for long, a configuration does not
            watched.update(item.agent_id for item in replica.core.configuration.replicas)
        self._lost_ms = {
            agent_id: self._lost_ms.get(agent_id, now_ms)
            for agent_id in watched
            if self._roster.is_lost(agent_id)
        }
        return Members(
            candidates=tuple(
                candidate_of(member)
                for member in placeable
                if now_ms - self._seen_ms[member.name] >= SETTLE_MS and member.name not in self._avoided_ms
            ),
            live=self._roster.live_agents(),
            now_ms=now_ms,
            replace_after_ms=self._replace_after_ms,
            lost_since_ms=self._lost_ms,
        )

    # ---- one group -------------------------------------------------------------------------------

    def _step_of(
        self, replica: Replica, members: Members, moving: set[GroupId], tasks: asyncio.TaskGroup
    ) -> Step | None:
        configuration = replica.core.configuration
        if configuration.index > replica.state.committed.last_index:
            return None  # one step at a time
        target = self._target(replica.group, configuration, members)
        if target is None or _is_settled(configuration, target, members):
            return None
        caught_up = stalled = NO_REPLICAS
        if configuration.learners:
            caught_up, stalled = self._watch_learners(replica)
            self._tell_learners(replica.group, configuration, caught_up, tasks)
        return next_step(
            Group(*replica.group, self._births(replica.group)),
            configuration,
            target,
            leader=replica.replica_id,
            caught_up=caught_up,
            members=members,
            stalled=stalled,
            may_add=replica.group in moving or replica.group == CATALOG_GROUP or len(moving) < MAX_MOVES,
        )

    def _target(self, group: GroupId, configuration: Configuration, members: Members) -> int | None:
        """How many voters the group should have; None for a topic that is not known here, or not any
        more."""
        factor: int | Literal["all"] = "all"
        if group != CATALOG_GROUP:
            entry = self._catalog().by_id(group.topic_id)
            if entry is None:
                return None
            factor = entry.settings.replication_factor
        if factor != "all":
            return factor
        present = members.live | {name for name in members.lost_since_ms if not members.is_dead(name)}
        if group == CATALOG_GROUP:
            wanted = len(catalog_voters(self._roster.agent_id, sorted(present)))
        else:
            wanted = min(ALL_REPLICAS_VOTERS, len(present))
        return steady_target(wanted, len(configuration.voters))

    def _births(self, group: GroupId) -> Sequence[tuple[str, ...]]:
        """Of every partition of the topic; cached, since each of its partitions asks."""
        entry = self._catalog().by_id(group.topic_id)
        if entry is None:
            return ((),)  # the catalog's own group: nobody has a claim to it by birth
        if self._cached_births[0] is not entry:
            self._cached_births = (entry, tuple(birth.voters for birth in entry.partitions))
        return self._cached_births[1]

    def _watch_learners(self, replica: Replica) -> tuple[frozenset[ReplicaId], frozenset[ReplicaId]]:
        """Those that have synced what was committed an interval ago (under load nobody ever holds
        everything), and those that have got nothing for long, though it is there to be had."""
        statistics = replica.core.statistics()
        goal = self._goals.get(replica.group)
        reached = replica.shipments.reached_index  # of one that copies whole segments beside Raft
        self._goals[replica.group] = statistics.commit_index
        caught_up, stalled = set(), set()
        for follower in statistics.followers:
            learner = _Learner(replica.group, follower.replica_id)
            if goal is not None and follower.match_index >= goal:
                caught_up.add(follower.replica_id)
            elif self._is_stalled(learner, max(follower.match_index, reached(follower.replica_id))):
                stalled.add(follower.replica_id)
        for item in statistics.configuration.replicas:
            if item.learner and item.id in stalled:
                logger.warning("%s: %s takes nothing; another agent shall", replica.group, item.agent_id[:8])
                self._avoided_ms[item.agent_id] = self._now_ms()
        return frozenset(caught_up), frozenset(stalled)

    def _is_stalled(self, learner: _Learner, match_index: LogIndex) -> bool:
        now_ms = self._now_ms()
        known, since_ms = self._progress.get(learner, (None, now_ms))
        if known != match_index:
            since_ms = now_ms
        self._progress[learner] = (match_index, since_ms)
        limit_ms = STALL_MS if learner in self._told else REFUSED_MS
        return now_ms - since_ms >= limit_ms

    def _propose(self, replica: Replica, step: Step) -> None:
        try:
            replica.propose_configuration(apply_step(replica.core.configuration, step))
        except (ReplicationError, ShoalError) as error:
            logger.debug("the replicas of %s stay for now: %s", replica.group, error)
            return
        logger.info("%s: %s", replica.group, step)

    # ---- learners --------------------------------------------------------------------------------

    def _tell_learners(
        self,
        group: GroupId,
        configuration: Configuration,
        caught_up: frozenset[ReplicaId],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Each learner's agent opens its replica, and hears when it has caught up; repeated until it says
        yes."""
        for replica in configuration.replicas:
            if not replica.learner:
                continue
            learner = _Learner(group, replica.id)
            has_all = replica.id in caught_up
            if self._told.get(learner) in (True, has_all):
                continue
            if self._now_ms() - self._asked_ms.get(learner, -HOLD_RETRY_MS) < HOLD_RETRY_MS:
                continue
            self._asked_ms[learner] = self._now_ms() + HOLD_TIMEOUT_MS  # not again while this one is out
            payload = encode_hold(group, configuration, caught_up=has_all)
            tasks.create_task(self._tell(replica.agent_id, learner, payload, has_all))

    async def _tell(self, agent_id: str, learner: _Learner, payload: bytes, has_all: bool) -> None:
        try:
            await self._roster.request(agent_id, PeerMessage.GROUP_HOLD, payload, HOLD_TIMEOUT_MS)
        except (PeerUnavailable, PeerRequestFailed) as error:
            logger.info("%s does not hold %s yet: %s", agent_id[:8], learner.group, error)
            self._asked_ms[learner] = self._now_ms()
        else:
            self._told[learner] = has_all
            self._asked_ms.pop(learner, None)


def _is_settled(configuration: Configuration, target: int, members: Members) -> bool:
    """What nearly every group is nearly always."""
    return len(configuration.voters) == len(
        configuration.replicas
    ) == target and not members.lost_since_ms.keys() & {
        replica.agent_id for replica in configuration.replicas
    }


def steady_target(wanted: int, voters: int) -> int:
    """Where the number follows the members it never falls with them: a group of three or more only gives up
    an even voter, which added nothing to what it survives."""
    return max(wanted, voters if voters < 3 or voters % 2 else voters - 1)
