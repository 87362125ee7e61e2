"""Carries out replication/placement/steps.py for every group that is led here, the catalog's among them.

Law of this file: it acts on groups that are led here. It watches the members, asks for the next step, and
proposes it. A new learner's agent is told to open its replica once the configuration that names it is
committed (safety 1, 2); assignments.py is that agent's side. The core checks every step. No group waits for a
peer's answer to another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.host.host import Host
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.members.roster import Roster, candidate_of
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, encode_hold
from shoal.agent.placement.leader_balancer import LeaderBalancer
from shoal.agent.placement.lost_replicas import LostReplicas
from shoal.agent.placement.quiet_groups import QuietGroups
from shoal.agent.placement.targets import Goals, Observed
from shoal.agent.process.clock import by_turns
from shoal.agent.topics.catalog import Catalog
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex
from shoal.replication.errors import ReplicationError
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.placement.assignment import Candidate
from shoal.replication.placement.steps import (
    AddLearner,
    Goal,
    Members,
    Permits,
    Promote,
    Remove,
    Step,
    Transfer,
    apply_step,
    next_step,
)

STEP_INTERVAL_S = 0.25
SETTLE_MS = 2_000  # a member seen for a shorter time may be gone again, or just being introduced
HOLD_TIMEOUT_MS = 5_000
HOLD_RETRY_MS = 1_000
STALL_MS = 60_000
"""A learner that syncs none of the entries sent for so long holds up its group and the head of its log."""
REFUSED_MS = 600_000
"""The same while its agent has not opened it: it may be busy with others, or not know the topic yet."""
AVOID_MS = 300_000
"""An agent on which a learner stalled gets no other for so long."""
MAX_MOVES = 8
"""Groups led here that bring learners up at the same time: each copies a whole log."""
MAX_BALANCING_MOVES = 2
"""The same for balance alone, which is not urgent."""
MAX_STEPS_PER_LOOK = 32
"""Configurations proposed in one look: a topic of many partitions whose replication factor is lowered has a
step for each of them at once."""
GROUPS_PER_TURN = 128
"""Of the loop: less than a millisecond for groups that need no step, as nearly all."""
STEADY_MS = 10_000
"""Nothing moves for balance until the members have been the same for so long, or for `replace_after`."""

NO_REPLICAS: frozenset[ReplicaId] = frozenset()

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


@dataclass(slots=True)
class _Learner:
    """A learner of a group led here, since this leader has looked first."""

    since_ms: int
    """Since when it has had no more than `match_index`."""
    match_index: LogIndex | None = None
    goal: LogIndex | None = None
    """The commit index one interval ago, which it must have by now."""
    told: bool | None = None
    """None: its agent has not opened it. Else whether that agent knows that it has caught up."""
    ask_again_ms: int = 0
    is_refused: bool = False
    """Its agent has said that it opens none in this run."""

    def is_stalled(self, match_index: LogIndex, now_ms: int) -> bool:
        """Whether it has had no more than that for too long, or never will."""
        if self.match_index != match_index:
            self.match_index, self.since_ms = match_index, now_ms
        limit_ms = REFUSED_MS if self.told is None else STALL_MS
        return self.is_refused or now_ms - self.since_ms >= limit_ms


class Rebalancer:
    """run() for the agent's life."""

    def __init__(
        self,
        *,
        roster: Roster,
        host: Host,
        catalog: Callable[[], Catalog],
        now_ms: Callable[[], int],
        replace_after_ms: Callable[[], int],
        lost_replicas: LostReplicas,
    ) -> None:
        self._lost_replicas = lost_replicas
        self._roster = roster
        self._host = host
        self._catalog = catalog
        self._now_ms = now_ms
        self._replace_after_ms = replace_after_ms
        self._seen_ms: dict[str, int] = {}
        self._lost_ms: dict[str, int] = {}
        self._learners: dict[tuple[GroupId, ReplicaId], _Learner] = {}
        self._avoided_ms: dict[str, int] = {}
        """Agents that took nothing, and when that was noticed."""
        self._placement = Goals(roster.agent_id)
        self._leader_balancer = LeaderBalancer(host, now_ms, settle_ms=self._steady_ms)
        self._quiet_groups = QuietGroups()
        self._belonging: tuple[Candidate, ...] = ()
        self._belonging_since_ms = now_ms()
        self._epoch: object = None
        self._settled: dict[GroupId, tuple[Configuration, int | str | None]] = {}
        """Groups that needed no step with that replication factor, whatever was permitted, while the members
        have been the same."""

    def _steady_ms(self) -> int:
        """How long members have been the same before anything moves for balance."""
        return min(STEADY_MS, self._replace_after_ms())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(STEP_INTERVAL_S)
                await self.look(tasks)

    async def look(self, tasks: asyncio.TaskGroup) -> None:
        """One look at everything led here, in several turns of the loop. Requests to learners' agents become
        tasks."""
        led = self._host.led_replicas()
        await asyncio.sleep(0)
        observed = self._observe(led)
        await asyncio.sleep(0)
        self._placement.look(observed)
        self._leader_balancer.look({replica.group for replica in led}, self._seen_ms)
        await asyncio.sleep(0)
        self._quiet_groups.look(led, observed.members.live, self._now_ms())
        await asyncio.sleep(0)
        self._forget_all_but(led)
        moving = {replica.group for replica in led if self._is_moving(replica)}
        proposed = 0
        async for replica in by_turns(led, GROUPS_PER_TURN):
            if not replica.serves:
                continue  # it led when the look began
            step = self._step_of(replica, observed, moving, tasks)
            if isinstance(step, Transfer):
                self._leader_balancer.hand_over(replica, step.replica_id, observed.members.drained)
            elif step is not None and proposed < MAX_STEPS_PER_LOOK:
                proposed += self._propose(replica, step)
                if isinstance(step, AddLearner):
                    moving.add(replica.group)

    def _is_moving(self, replica: Replica) -> bool:
        """Whether a learner is brought up. Learners that have everything may stay for ever (`all`)."""
        learners = replica.core.configuration.learners
        return any(self._learner(replica.group, learner).told is not True for learner in learners)

    def _learner(self, group: GroupId, replica_id: ReplicaId) -> _Learner:
        """Of a group's configuration, which may be newer than this look."""
        key = group, replica_id
        if key not in self._learners:
            self._learners[key] = _Learner(self._now_ms())
        return self._learners[key]

    def _forget_all_but(self, led: Sequence[Replica]) -> None:
        """A new leader begins anew: to tell a learner twice does no harm."""
        now_ms = self._now_ms()
        keys = [
            (replica.group, learner) for replica in led for learner in replica.core.configuration.learners
        ]
        self._learners = {key: self._learners.get(key) or _Learner(now_ms) for key in keys}
        if len(self._settled) > 2 * len(led) + MAX_MOVES:
            ours = {replica.group for replica in led}
            self._settled = {group: known for group, known in self._settled.items() if group in ours}

    # ---- who is there ----------------------------------------------------------------------------

    def _observe(self, led: Sequence[Replica]) -> Observed:
        now_ms = self._now_ms()
        placeable = self._roster.placeable()
        ours = self._roster.ours()
        self._seen_ms = {member.name: self._seen_ms.get(member.name, now_ms) for member in placeable}
        self._avoided_ms = {
            agent_id: since_ms
            for agent_id, since_ms in self._avoided_ms.items()
            if now_ms - since_ms < AVOID_MS
        }
        watched = {member.name for member in ours}
        holders = {item.agent_id for replica in led for item in replica.core.configuration.replicas}
        watched |= holders  # gossip forgets who has been gone for long, a configuration does not
        self._lost_ms = {
            agent_id: self._lost_ms.get(agent_id, now_ms)
            for agent_id in watched
            if self._roster.is_lost(agent_id)
        }
        settled = {name for name, since_ms in self._seen_ms.items() if now_ms - since_ms >= SETTLE_MS}
        members = Members(
            candidates=tuple(
                candidate_of(member)
                for member in placeable
                if member.name in settled and member.name not in self._avoided_ms
            ),
            live=self._roster.live_agents(),
            now_ms=now_ms,
            replace_after_ms=self._replace_after_ms(),
            lost_since_ms=self._lost_ms,
            drained=self._roster.drained(),
        )
        known = self._roster.met() | holders  # others may be nothing but what somebody gossips
        belonging = tuple(
            candidate_of(member)
            for member in sorted(ours, key=lambda item: item.name)
            if member.name in known
            and member.name not in members.drained
            and not members.is_dead(member.name)
            and (member.name in settled or member.name not in self._seen_ms)
        )
        return Observed(members, belonging, self._is_steady(members, belonging, settled))

    def _is_steady(self, members: Members, belonging: tuple[Candidate, ...], settled: set[str]) -> bool:
        if belonging != self._belonging:
            self._belonging = belonging
            self._belonging_since_ms = members.now_ms
        steady = members.now_ms - self._belonging_since_ms >= self._steady_ms() and all(
            item.agent_id in settled for item in belonging
        )
        dead = frozenset(name for name in self._lost_ms if members.is_dead(name))
        epoch = (members.candidates, members.live, dead, members.drained, belonging)
        if epoch != self._epoch:
            self._epoch = epoch
            self._settled.clear()
        return steady

    # ---- one group -------------------------------------------------------------------------------

    def _step_of(
        self, replica: Replica, observed: Observed, moving: set[GroupId], tasks: asyncio.TaskGroup
    ) -> Step | None:
        configuration = replica.core.configuration
        if configuration.index > replica.state.committed.last_index:
            return None  # one step at a time
        group = replica.group
        catalog = self._catalog()
        known = self._settled.get(group)
        lost = self._lost_replicas.among(group, configuration)
        factor = factor_of(group, catalog)
        if known is not None and known[0] is configuration and known[1] == factor and not lost:
            return None
        goal = self._placement.goal(group, configuration, catalog, observed)
        if goal is None:
            return None
        members = observed.members
        caught_up = stalled = NO_REPLICAS
        if configuration.learners:
            caught_up, stalled = self._watch_learners(replica)
            self._tell_learners(replica, configuration, caught_up, tasks)
        step = next_step(
            group,
            configuration,
            goal,
            leader=replica.replica_id,
            caught_up=caught_up,
            members=members,
            stalled=stalled,
            lost=lost,
            permits=self._permits(replica, goal, observed, moving),
        )
        if step is None and not lost and not self._is_moving(replica):
            self._remember_settled(replica, configuration, goal, members)
        return step

    def _permits(self, replica: Replica, goal: Goal, observed: Observed, moving: set[GroupId]) -> Permits:
        leads = self._leader_balancer.may_hand_over(replica, goal.leader)  # asked in any case: it remembers
        return Permits(
            add=replica.group in moving or replica.group == CATALOG_GROUP or len(moving) < MAX_MOVES,
            move=observed.steady and len(moving) < MAX_BALANCING_MOVES,
            lead=observed.steady and leads,
        )

    def _remember_settled(
        self, replica: Replica, configuration: Configuration, goal: Goal, members: Members
    ) -> None:
        """As nearly every group is nearly always. A lost member may become dead without another epoch."""
        if any(item.agent_id in self._lost_ms for item in configuration.replicas):
            return
        rest = next_step(
            replica.group,
            configuration,
            goal,
            leader=replica.replica_id,
            caught_up=frozenset(configuration.learners),
            members=members,
        )
        if rest is None:
            self._settled[replica.group] = (configuration, factor_of(replica.group, self._catalog()))

    def _watch_learners(self, replica: Replica) -> tuple[frozenset[ReplicaId], frozenset[ReplicaId]]:
        """Learners that have synced what was committed an interval ago (under load none ever holds all), and
        learners that have made no progress for long."""
        core = replica.core
        reached = replica.shipments.reached_index  # of one that copies whole segments beside Raft
        caught_up, stalled = set(), set()
        for follower, match_index in core.match_indexes.items():
            learner = self._learners.get((replica.group, follower))
            if learner is None:
                continue  # it votes
            if learner.goal is not None and match_index >= learner.goal:
                caught_up.add(follower)
            elif learner.is_stalled(max(match_index, reached(follower)), self._now_ms()):
                stalled.add(follower)
            learner.goal = core.commit_index
        for item in core.configuration.replicas:
            if item.learner and item.id in stalled:
                logger.warning(
                    "%s: the learner on %s is stuck; trying another agent",
                    replica.group,
                    agent_name(item.agent_id),
                )
                self._avoided_ms[item.agent_id] = self._now_ms()
        return frozenset(caught_up), frozenset(stalled)

    def _propose(self, replica: Replica, step: AddLearner | Promote | Remove) -> bool:
        """Whether the core took it."""
        before = replica.core.configuration
        try:
            replica.propose_configuration(apply_step(before, step))
        except (ReplicationError, ShoalError) as error:
            logger.debug("%s: cannot change replicas now: %s", replica.group, error)
            return False
        logger.info("%s: %s", replica.group, _told(step, before), extra=about("replicas-changing"))
        return True

    # ---- learners --------------------------------------------------------------------------------

    def _tell_learners(
        self,
        led: Replica,
        configuration: Configuration,
        caught_up: frozenset[ReplicaId],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Each learner's agent opens its replica, and hears when it has caught up; repeated until it
        agrees."""
        for replica in configuration.replicas:
            if not replica.learner:
                continue
            learner = self._learner(led.group, replica.id)
            has_all = replica.id in caught_up
            if learner.told in (True, has_all) or self._now_ms() < learner.ask_again_ms:
                continue
            learner.ask_again_ms = self._now_ms() + HOLD_TIMEOUT_MS + HOLD_RETRY_MS  # after this one's end
            payload = encode_hold(led.group, configuration, caught_up=has_all)
            tasks.create_task(self._tell(led, replica.agent_id, learner, payload, has_all))

    async def _tell(
        self, led: Replica, agent_id: str, learner: _Learner, payload: bytes, has_all: bool
    ) -> None:
        try:
            refusal = await self._roster.request(agent_id, PeerMessage.GROUP_HOLD, payload, HOLD_TIMEOUT_MS)
        except (PeerUnavailable, PeerRequestFailed) as error:
            seldom.info("%s: %s has not opened its replica yet: %s", led.group, agent_name(agent_id), error)
            learner.ask_again_ms = self._now_ms() + HOLD_RETRY_MS
            return
        learner.is_refused = bool(refusal)
        if refusal:
            reason = refusal.decode(errors="replace")
            seldom.warning("%s: %s takes no new replica: %s", led.group, agent_name(agent_id), reason)
        else:
            learner.told, learner.ask_again_ms = has_all, 0
            # A group may have gone quiet while that replica was not there to be heard; it never asks itself.
            led.core.wake_quiet(self._now_ms())
            led.host.schedule(led)


def factor_of(group: GroupId, catalog: Catalog) -> int | str | None:
    """The replication factor of the group's topic; None for the catalog's own, and for an unknown topic."""
    entry = catalog.by_id(group.topic_id)
    return None if entry is None else entry.settings.replication_factor


def _told(step: AddLearner | Promote | Remove, before: Configuration) -> str:
    if isinstance(step, AddLearner):
        return f"adding a replica on {agent_name(step.agent_id)}"
    found = before.find(step.replica_id)
    assert found is not None
    what = "promoting" if isinstance(step, Promote) else "removing"
    return f"{what} the replica on {agent_name(found.agent_id)}"
