"""Hosts that change from the former version of Shoal to the present one and back, which is one program.

Law of this file: versions differ in the levels that they understand (agent/levels.py). An operator upgrades
hosts one by one and rolls some back, also too late: such an agent ends by itself and is upgraded then. What
must hold is looked at when a catalog takes a level, and some times a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster_sim.loop import LIFE
from cluster_sim.node import Node
from shoal.agent import levels
from shoal.agent.levels import BEFORE_LEVELS, SUPPORTED, Level
from shoal.agent.topics.catalog import Catalog, Outcome

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

FORMER, PRESENT = BEFORE_LEVELS, SUPPORTED
RAISE_AFTER_MS = 2_000
"""Instead of a minute, which no simulation lasts."""
HEARD_S = 5.0
"""So long after a change of its version all others have heard of it, or list the host as failed."""
LOOK_S = 0.1
ROLLED_BACK = 0.3
DOWN_S = (0.3, 2.0)
LONG_DOWN = 0.3
LONG_DOWN_S = (5.0, 12.0)
"""Gossip gives the host up meanwhile, and a level that does not wait for it rises."""


class Upgrades:
    """See the head of this file. Nothing happens in a simulation without them."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._wanted = simulation.knobs.upgrades
        self._changed_s: dict[str, float] = {}
        """By address: when a host got the version that it has."""
        self._ended = False
        self.level = levels.FIRST_LEVEL
        """The highest that a catalog has taken."""

    def first_version(self) -> levels.LevelRange:
        """Of a host that is new."""
        return FORMER if self._wanted and not self._ended else PRESENT

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """What the simulation patches while it runs."""
        raise_level = Catalog._raise_level

        def raised(catalog: Catalog, level: Level) -> Outcome:
            outcome = raise_level(catalog, level)
            if outcome == "done" and level > self.level:
                self.level = level
                self._check_raise(level)
            return outcome

        return [(Catalog, "_raise_level", raised), (levels, "RAISE_AFTER_MS", RAISE_AFTER_MS)]

    # ---- what is done ----------------------------------------------------------------------------

    def change_one(self) -> str:
        """One host is stopped and started again with the other version, mostly with the newer one."""
        simulation, rng = self._simulation, self._simulation.rng
        hosts = [node for node in simulation.nodes if node.is_running]
        if not hosts:
            return "nobody"
        node = rng.choice(hosts)
        to = PRESENT if node.levels == FORMER or rng.random() >= ROLLED_BACK else FORMER
        if to == node.levels:
            return f"nothing on {node.name}"
        how = rng.choice((Node.kill, Node.leave))
        how(node)
        down_s = rng.uniform(*(LONG_DOWN_S if rng.random() < LONG_DOWN else DOWN_S))
        simulation.nemesis.after(down_s, lambda: self._start(node, to))
        return f"{node.name} to {to}"

    def _start(self, node: Node, version: levels.LevelRange) -> None:
        if node.is_running and node.has_left:
            node.kill()  # it takes its time to leave
        if node.is_running:
            return
        self.set_version(node, version)
        self._simulation.start(node)

    def set_version(self, node: Node, version: levels.LevelRange) -> None:
        """What is installed there, from its next start on."""
        node.levels = version
        self._changed_s[node.address] = self._simulation.loop.time()

    def upgrade_all(self) -> None:
        """The operator ends the upgrade: hosts that come later have the present version, too."""
        self._ended = True
        for node in self._simulation.nodes:
            if node.levels == PRESENT:
                continue
            if node.is_running:
                node.kill()
            self.set_version(node, PRESENT)
            self._simulation.start(node)

    # ---- what must hold --------------------------------------------------------------------------

    def _check_raise(self, level: Level) -> None:
        """RaisedTooEarly: every member that has not left understands the level, as far as the first agent
        that takes it can know."""
        life, now_s = LIFE.get(), self._simulation.loop.time()
        (here,) = (node for node in self._simulation.nodes if node.life is life)
        assert here.agent is not None
        assert here.agent.node is not None
        listed = {member.name for member in here.agent.node.roster.ours() if member.status != "left"}
        for node in self._simulation.nodes:
            agent = node.agent
            known = agent is not None and agent.directory is not None and agent.agent_id in listed
            settled = now_s - self._changed_s.get(node.address, 0.0) > HEARD_S
            if known and settled and not node.levels.has(level):
                detail = f"{here.name} takes level {level}, and {node.name} understands {node.levels}"
                self._simulation.invariants.fail("RaisedTooEarly", detail)

    def look(self) -> None:
        """LevelUnderstood: no agent works with a catalog that it does not understand."""
        for node in self._simulation.nodes:
            agent = node.agent
            if not node.is_running or agent is None or agent.cluster is None:
                continue
            level = agent.cluster.joined.catalog.catalog.level
            if not node.levels.has(level):
                detail = f"{node.name} understands {node.levels}, and its catalog is at level {level}"
                self._simulation.invariants.fail("LevelUnderstood", detail)
        if self._wanted:
            self._simulation.loop.call_later(LOOK_S, self.look)

    def is_over(self) -> bool:
        """Every agent has the level of the present version, once no host with another one is missing."""
        return self._simulation.holds_level or all(map(self.is_raised, self._simulation.nodes))

    @staticmethod
    def is_raised(node: Node) -> bool:
        """Whether the catalog there is at the level of the present version."""
        agent = node.agent
        catalog = None if agent is None or agent.cluster is None else agent.cluster.joined.catalog.catalog
        return catalog is not None and catalog.level == PRESENT.highest
