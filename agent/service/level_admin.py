"""The cluster's level: shown by any agent, raised by hand by the one that leads the catalog.

Law of this file: what a request may ask, and what a refusal says. When the level rises by itself is
catalog_upkeep.py's business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shoal.agent.levels import NAMED_MAX, Level, LevelRange, common_level, level_in
from shoal.agent.members.tags import LIVE
from shoal.agent.service.topic_admin import TopicService
from shoal.agent.topics.catalog import RaiseLevel
from shoal.agent.topics.catalog_upkeep import understood_levels
from shoal.errors import ShoalError

WITHOUT_MAX = 64
"""Agents that a request calls gone for good."""


class LevelService(TopicService):
    """Part of the broker."""

    async def raise_level(self, wanted: object, without: object, timeout_ms: int) -> dict[str, Any]:
        """POST /v1/cluster/level: to the level wanted, None for the highest that all understand. `without`:
        agents that are gone for good, by id or name. ShoalError bad-request, level-refused, not-leader,
        no-leader, timeout."""
        service = await self._current_catalog(timeout_ms)
        level, understood = service.catalog.level, self._understood_without(without)
        target = _highest(understood.values(), level) if wanted is None else level_in(wanted)
        if target is None:
            raise ShoalError("bad-request", f"level {str(wanted)[:20]!r} is none: give a whole number from 1")
        if target < level:
            raise ShoalError(
                "level-refused", f"the cluster is at level {level}, and no level is ever lowered"
            )
        if target > level:
            self._check_understood(understood, target)
            await service.propose(RaiseLevel(target), timeout_ms)
            await service.exchange.tell_peers()
        return self.level_document()

    def _understood_without(self, without: object) -> dict[str, LevelRange]:
        understood, names = understood_levels(self._roster, self._cluster.table.holders()), self._names()
        if not isinstance(without, list) or len(without) > WITHOUT_MAX:
            raise ShoalError("bad-request", f"without has to be a list of up to {WITHOUT_MAX} ids or names")
        live = {member.name for member in self._roster.members() if member.status in LIVE}
        for item in without:
            found = [agent for agent in understood if item in (agent, names.get(agent))]
            if not item or len(found) != 1:  # an agent that gossip has forgotten has no name
                raise ShoalError(
                    "bad-request",
                    f"{str(item)[:64]!r} is no agent that counts: `shoal cluster level` shows them",
                )
            if found[0] in live:
                raise ShoalError("level-refused", f"{str(item)[:64]} is alive: upgrade it, or stop it first")
            del understood[found[0]]
        return understood

    def _check_understood(self, understood: Mapping[str, LevelRange], target: Level) -> None:
        lacking = [item for item in sorted(understood.items()) if not item[1].has(target)]
        if not lacking:
            return
        names = self._names()
        said = ", ".join(
            f"{names.get(agent_id) or agent_id} understands {levels.words()}"
            for agent_id, levels in lacking[:NAMED_MAX]
        )
        more = f", and {len(lacking) - NAMED_MAX} more" if len(lacking) > NAMED_MAX else ""
        raise ShoalError(
            "level-refused",
            f"not every member understands level {target}: {said}{more}; upgrade them, or name those that are"
            " gone for good: `shoal cluster raise-level --without NAME`",
        )


def _highest(understood: Collection[LevelRange], level: Level) -> Level:
    """That all understand; the next one, which is refused, where only some understand more."""
    target = common_level(understood)
    if target is not None and target > level:
        return target
    return Level(level + 1) if any(levels.highest > level for levels in understood) else level
