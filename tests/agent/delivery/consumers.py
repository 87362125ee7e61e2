"""Consumers of a group on a harness cluster, who ask whoever leads until there is an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from waiting import PATIENCE_S, until

from shoal.agent.delivery.keeper import GROUP_LEVEL, GroupKeeper
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.groups.settings import GroupPlan, GroupPlans, GroupSettings
from shoal.agent.receive import NOBODY, Act, ActKind, Granted, GroupKey, Wanted
from shoal.errors import ShoalError
from shoal.format.receipt import Receipt
from tests.agent.harness import GROUP, Cluster, Node

KEY = GroupKey(bytes(range(16)))
SETTINGS = GroupSettings(retry_first_ms=0, retry_most_ms=0)
TIMEOUT_MS = 2_000


def plans_of(
    settings: GroupSettings = SETTINGS, *, catalog: tuple[int, int] = (1, 8), key: GroupKey = KEY
) -> GroupPlans:
    """One group, made by the catalog's command at offset 7."""
    plan = GroupPlan(key, "workers", settings, b"m" * 16, (1, 7))
    return GroupPlans({key: plan}, catalog, GROUP_LEVEL, 1)


def hashed(name: str) -> bytes:
    return name.encode().ljust(16, b"\0") if name else NOBODY


def wanted(consumer: str = "", limit: int = 10, *, request: str = "", lease_ms: int = 30_000) -> Wanted:
    return Wanted(hashed(consumer), NOBODY, hashed(request), limit, 2**20, lease_ms, name=consumer)


class Consumers:
    """Of one group of a cluster whose replicas fold groups."""

    def __init__(self, cluster: Cluster, settings: GroupSettings = SETTINGS, **options: Any) -> None:
        """`options`: of the replicas' plans."""
        self.cluster = cluster
        self.options = {"fold": GroupFold} | options
        self.plans = plans_of(settings)
        self.lost = 0
        """Answers that were indefinite errors: then the same request was sent again."""
        self._requests = 0

    async def start(self) -> None:
        """The replicas, with folds of groups instead of those that were started."""
        for node in list(self.cluster.alive):
            await self.cluster.stop(node)
        for node in self.cluster.nodes:
            await self.join(node)

    async def join(self, node: Node) -> None:
        """A node's next life."""
        await self.cluster.start(node, groups=self.plans, **self.options)

    def set_groups(self, plans: GroupPlans) -> None:
        """Every agent's catalog says so."""
        self.plans = plans
        for node in self.cluster.alive:
            node.host.set_groups(GROUP, plans)

    async def at_leader(self, call: Any) -> Any:
        """The answer of the leader's keeper; asked again while an error allows it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                node = await self.cluster.leader()
                try:
                    return await call(node.host.keeper(GROUP), node.host.clock.now_ms() + TIMEOUT_MS)
                except ShoalError as error:
                    if not error.retriable:
                        raise
                    self.lost += not error.definite
                    await asyncio.sleep(0.02)

    async def receive(
        self, what: Wanted, acts: Sequence[Act] = (), *, wait_ms: int = 0, key: GroupKey = KEY
    ) -> Granted:
        """Under a request's name of its own, unless it has one: a repetition brings the same messages."""
        if what.request == NOBODY:
            self._requests += 1
            what = what._replace(request=hashed(f"#{self._requests}"))
        lost = self.lost

        async def call(keeper: GroupKeeper, deadline_ms: int) -> Granted:
            return await keeper.receive(key, what, acts, wait_ms, deadline_ms)

        granted: Granted = await self.at_leader(call)
        return granted._replace(outcomes=self._said(granted.outcomes, lost))

    async def act(self, *acts: Act) -> tuple[str | None, ...]:
        async def call(keeper: GroupKeeper, deadline_ms: int) -> tuple[str | None, ...]:
            return await keeper.act(KEY, acts, deadline_ms)

        lost = self.lost
        return self._said(await self.at_leader(call), lost)

    def _said(self, outcomes: tuple[str | None, ...], lost: int) -> tuple[str | None, ...]:
        """As a client takes them: an act that is sent again may have been done the first time."""
        if lost == self.lost:
            return outcomes
        return tuple(None if outcome == "receipt-used" else outcome for outcome in outcomes)


def ack(granted: Granted, offset: int | None = None, kind: ActKind = ActKind.ACK, **more: Any) -> Act:
    """A word about a whole answer, or one of its messages."""
    return Act(kind, Receipt(KEY, 0, granted.generation, granted.delivery, offset), **more)


def offsets(granted: Granted) -> list[int]:
    return [at for piece, _ in granted.delivered for at in range(piece.first, piece.first + piece.count)]


def attempts(granted: Granted) -> dict[int, int]:
    return {
        at: attempt
        for piece, attempt in granted.delivered
        for at in range(piece.first, piece.first + piece.count)
    }


def fold_of(node: Node) -> GroupFold:
    fold = node.host.replica(GROUP).state.fold
    assert isinstance(fold, GroupFold)
    return fold


def group_of(node: Node) -> PartitionGroup:
    return fold_of(node).groups[KEY]


async def equal_folds(cluster: Cluster) -> bytes:
    """The bytes of every replica's fold, once all have everything."""

    def is_quiet() -> bool:
        states = [node.host.replica(GROUP).state for node in cluster.alive]
        return len({end.last_index for state in states for end in (state.tail, state.committed)}) == 1

    await until(is_quiet)
    data = fold_of(cluster.alive[0]).to_bytes()
    for node in cluster.alive:
        fold_of(node).check_invariants()
        assert fold_of(node).to_bytes() == data
    return data
