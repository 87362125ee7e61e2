"""What goes wrong, and when: each fault ends by itself, and all of them with the safety phase.

Law of this file: it decides from the seed which fault comes next, and carries it out. What each may cost is
limited to what the product promises to survive: bit rot and a lost disk strike one host a run.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from memory_disk import Fault
from raft_sim.network import SHAPES, cut

from cluster_sim.disk import SimDisk
from cluster_sim.node import Node
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.topics.catalog import Catalog
from shoal.segment_store.format.layout import INDEX_SUFFIX, SEGMENT_SUFFIX

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

DOWN_S = (0.05, 0.5, 3.0, 8.0)
QUICK_S = (0.01, 0.05, 0.3)
CUT_S = (0.2, 1.0, 4.0)
FLAP_S = 0.1
LAGS_S = (0.8, 1.4, 2.0)
"""More than an election timeout, up to three of them: others lead meanwhile."""
LAG_STEP_S, LAG_EVERY_S = 0.08, 0.1
"""As queues in routers grow: nothing is missing for as long as an election timeout."""
NODES_MAX = 6
ROOM_BYTES = 96 * 1_024
JUMPS_S = (-3_600, -70, -1, 0, 1, 70, 3_600)
YEAR_S = 365 * 24 * 3_600
LONG_JUMPS_S = (-10 * YEAR_S, -YEAR_S, -2 * 24 * 3_600, 2 * 24 * 3_600, YEAR_S, 10 * YEAR_S)
REPLICAS = 3
NEWEST_BYTES = 3_000
"""Some entries and the tail record at the end of a log."""
RUINED_FROM = 1_000
"""Behind a segment's header, before its first entry ends."""
STOPPED_MAX = 3
"""Replicas of one host that stop in a run: others have the rest."""
ERROR_PLACES = ("/topics/", "/topics/", "hard-state", "replicas", "cluster", "identity")


class Nemesis:
    """`counts`: how often each fault struck."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._rng: random.Random = simulation.rng
        self.counts: dict[str, int] = {}
        self.rotten: str | None = None
        """The address of the host whose disk rots."""
        self.broken: str | None = None
        """That of the host of which replicas have stopped."""
        self.exchanged: str | None = None
        self.drained: set[str] = set()
        self.crowded: Node | None = None
        self.hoarded: Node | None = None
        self.fresh_until_s = 0.0
        """Until then what was done last is not over, and clients shall meet it."""
        self._active = True
        knobs = simulation.knobs
        faults: list[Callable[[], str]] = [self.reset_streams]
        for wanted, makers in (
            (knobs.kills, [self.kill_one, self.kill_leader, self.kill_majority, self.kill_all]),
            (knobs.power, [self.power_one, self.power_leader, self.power_majority, self.power_all]),
            (knobs.cuts, [self.cut_some, self.cut_some, self.cut_leader, self.flap, self.mute_leader]),
            (knobs.cuts, [self.late_leader]),
            (knobs.cuts and knobs.slow_disks, [self.overload_leader]),
            (knobs.weather, [self.worsen_weather]),
            (knobs.pauses, [self.pause_one, self.pause_leader]),
            (knobs.slow_disks, [self.slow_disk, self.stick_disk]),
            (knobs.disk_errors, [self.fail_sync, self.fail_write, self.fill_disk, self.stop_replica]),
            (knobs.clocks or knobs.years, [self.jump_clock]),
            (knobs.crowd, [self.crowd]),
            (knobs.little_memory, [self.hoard]),
            (knobs.leaving, [self.leave]),
            (knobs.joining, [self.join]),
            (knobs.draining, [self.drain]),
            (knobs.rot, [self.rot, self.rot, self.ruin]),
            (knobs.rot and (knobs.timers or knobs.tables), [self.rot_run]),
            (knobs.lost_disk, [self.lose_disk]),
            (knobs.upgrades, [self.change_version, self.change_version]),
        ):
            faults += makers if wanted else []
        self._faults = [getattr(self, name) for name in knobs.only] or faults

    def strike(self) -> None:
        """Make one fault."""
        maker = self._rng.choice(self._faults)
        name = maker.__name__
        said = maker()
        if said and not said.startswith("no"):  # nobody was there to be struck
            self.counts[name] = self.counts.get(name, 0) + 1
        self._simulation.trace("FAULT", f"{name} {said}")

    def stop(self) -> None:
        """What is under way ends; nothing that was planned begins any more."""
        self._active = False

    def change_version(self) -> str:
        return self._simulation.upgrades.change_one()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Unless the faults have ended by then."""

        def act() -> None:
            if self._active:
                action()

        self._simulation.loop.call_later(delay_s, act)

    # ---- hosts -----------------------------------------------------------------------------------

    def _running(self) -> list[Node]:
        return [node for node in self._simulation.nodes if node.is_running]

    def _leaders(self) -> list[Node]:
        return [node for node in self._running() if node.host is not None and node.host.led_replicas()]

    def _bring_back(self, node: Node, after_s: float) -> None:
        def start() -> None:
            if not node.is_running:
                self._simulation.start(node)

        self.after(after_s, start)

    def _stop(self, nodes: list[Node], how: Callable[[Node], None]) -> str:
        for node in nodes:
            how(node)
            down_s = QUICK_S if self._simulation.knobs.quick_restarts else DOWN_S
            self._bring_back(node, self._rng.choice(down_s) * self._rng.uniform(0.5, 1.5))
        return " ".join(node.name for node in nodes)

    def _some(self, count: int) -> list[Node]:
        running = self._running()
        return self._rng.sample(running, min(count, len(running)))

    def _majority(self) -> list[Node]:
        return self._some(len(self._simulation.nodes) // 2 + 1)

    def kill_one(self) -> str:
        return self._stop(self._some(1), Node.kill)

    def kill_leader(self) -> str:
        return self._stop(self._leaders()[:1], Node.kill)

    def kill_majority(self) -> str:
        return self._stop(self._majority(), Node.kill)

    def kill_all(self) -> str:
        return self._stop(self._running(), Node.kill)

    def power_one(self) -> str:
        return self._stop(self._some(1), Node.lose_power)

    def power_leader(self) -> str:
        return self._stop(self._leaders()[:1], Node.lose_power)

    def power_majority(self) -> str:
        return self._stop(self._majority(), Node.lose_power)

    def power_all(self) -> str:
        return self._stop(self._running(), Node.lose_power)

    def _pause(self, nodes: list[Node]) -> str:
        pause_s = self._rng.choice((0.1, 0.8, 3.0, 6.0))
        for node in nodes:
            if node.life is not None and not node.life.is_paused:
                node.pause()
                self.after(pause_s, node.resume)
        return f"{' '.join(node.name for node in nodes)} for {pause_s} s"

    def pause_one(self) -> str:
        return self._pause(self._some(1))

    def pause_leader(self) -> str:
        return self._pause(self._leaders()[:1])

    def leave(self) -> str:
        nodes = self._some(1)
        for node in nodes:
            node.leave()
            self._bring_back(node, self._rng.uniform(3, 12))
        return " ".join(node.name for node in nodes)

    def join(self) -> str:
        if len(self._simulation.nodes) >= NODES_MAX:
            return "nobody: there are enough"
        node = self._simulation.add_node()
        node.never_founds()
        self._simulation.start(node)
        return node.name

    def drain(self) -> str:
        """A host is told to hold nothing any more, and some time later to hold replicas again."""
        nodes = self._some(1)
        for node in nodes:
            self.drained.add(node.address)
            self._simulation.tell_drain(node, undo=False)
            self.after(self._rng.uniform(2, 8), partial(self._simulation.tell_drain, node, undo=True))
        return " ".join(node.name for node in nodes)

    def lose_disk(self) -> str:
        """A host gets a new, empty disk. Its peers have the rest: no second one is lost in this run, and
        none where two replicas are all that a group has, which may be as young as its topic."""
        candidates = [node for node in self._running() if node.is_ready]
        if self.exchanged is not None or len(candidates) < 3:
            return "nobody's"
        candidates = [node for node in candidates if not self._holds_one_of_two(node)]
        if not candidates:
            return "nobody's"
        node = self._rng.choice(candidates)
        self.exchanged = node.address
        node.lose_power()
        node.disk.wipe()
        node.never_founds()
        self._simulation.invariants.disk_was_wiped(node.address)
        self._bring_back(node, self._rng.uniform(0.5, 5))
        return node.name

    def _catalogs(self) -> Iterator[Catalog]:
        """What each agent knew last; empty before it has found its cluster."""
        for node in self._simulation.nodes:
            broker = getattr(node.agent, "broker", None)
            if broker is not None:
                yield broker._catalog

    def _topics_born_whole(self) -> set[str]:
        """Names of directories. What was born while agents were away may have but one copy to lose."""
        born = {
            entry.topic_id.hex()
            for catalog in self._catalogs()
            for entry in catalog.topics.values()
            if all(len(birth.voters) >= REPLICAS for birth in entry.partitions)
        }
        return born | {CATALOG_GROUP.topic_id.hex()}

    def _holds_one_of_two(self, node: Node) -> bool:
        assert node.agent is not None
        host, agent_id = node.host, node.agent.agent_id
        assert host is not None
        for catalog in self._catalogs():
            for entry in catalog.topics.values():
                for partition, birth in enumerate(entry.partitions):
                    is_young = agent_id in birth.voters and len(birth.voters) < REPLICAS
                    if is_young and not host.has(GroupId(entry.topic_id, partition)):
                        return True
        for held in host._groups.values():
            voters = [item.agent_id for item in held.replica.core.configuration.replicas if not item.learner]
            if agent_id in voters and len(voters) < REPLICAS:
                return True
        return False

    def jump_clock(self) -> str:
        """By seconds, by an hour, or by years; for good, or for a moment."""
        node = self._rng.choice(self._simulation.nodes)
        knobs = self._simulation.knobs
        before_us = node.clock_offset_us
        node.set_clock(int(self._rng.choice(JUMPS_S + (LONG_JUMPS_S if knobs.years else ())) * 1_000_000))
        if knobs.years and self._rng.random() < 0.5:
            self.after(self._rng.uniform(0.1, 2), partial(node.set_clock, before_us))
        return node.name

    # ---- network ---------------------------------------------------------------------------------

    def _cut(self, links: set[tuple[str, str]], duration_s: float) -> None:
        network = self._simulation.network
        network.cuts |= links

        def heal() -> None:
            network.cuts.difference_update(links)
            network.look_at_held()

        self.after(duration_s, heal)

    def _addresses(self) -> list[str]:
        return [node.address for node in self._simulation.nodes]

    def cut_some(self) -> str:
        shape = self._rng.choice(SHAPES)
        links = cut(shape, self._addresses(), self._rng)
        duration_s = self._rng.choice(CUT_S)
        if self._rng.random() < 0.2:
            links |= {(self._simulation.client_address, self._rng.choice(self._addresses()))}
        self._cut(set(links), duration_s)
        return f"{shape} for {duration_s} s"

    def _leader_links(self, *, both_ways: bool) -> tuple[str, set[tuple[str, str]]]:
        leaders = self._leaders()
        if not leaders:
            return "nobody", set()
        leader = self._rng.choice(leaders)
        others = [address for address in self._addresses() if address != leader.address]
        links = {(leader.address, other) for other in others}
        return leader.name, links | ({(other, leader.address) for other in others} if both_ways else set())

    def cut_leader(self) -> str:
        name, links = self._leader_links(both_ways=True)
        self._cut(links, self._rng.choice(CUT_S))
        return name

    def mute_leader(self) -> str:
        """It hears everybody, nobody hears it."""
        name, links = self._leader_links(both_ways=False)
        self._cut(links, self._rng.choice(CUT_S))
        return name

    def late_leader(self) -> str:
        """Queues grow on the way to a leader, so that it hears everybody later and later; then nobody hears
        it any more. What others said before they had another leader is still on its way."""
        name, links = self._leader_links(both_ways=False)
        lag_s = self._rng.choice(LAGS_S)
        steps = round(lag_s / LAG_STEP_S)
        late = {(target, source) for source, target in links}
        for step in range(1, steps + 1):
            self.after(step * LAG_EVERY_S, partial(self._lag, late, step * LAG_STEP_S))
        mute_s = self._rng.uniform(1, 2) * lag_s
        self.fresh_until_s = self._simulation.loop.time() + steps * LAG_EVERY_S + mute_s
        self.after(steps * LAG_EVERY_S, partial(self._cut, links, mute_s))
        self.after(steps * LAG_EVERY_S + mute_s, partial(self._lag, late, 0.0))
        return f"{name} by {lag_s} s"

    def _lag(self, ways: set[tuple[str, str]], lag_s: float) -> None:
        lags = self._simulation.network.lags
        for way in ways:
            lags[way] = lag_s
            if not lag_s:
                del lags[way]

    def overload_leader(self) -> str:
        """A host that does too much: it is not heard for a moment, and its disk stands still for longer, so
        that what it wrote as a leader ends when others have led."""
        leaders = self._leaders()
        if not leaders:
            return "nobody"
        leader = self._rng.choice(leaders)
        away_s = self._rng.uniform(0.7, 2)
        self.fresh_until_s = self._simulation.loop.time() + away_s
        others = [address for address in self._addresses() if address != leader.address]
        links = {(leader.address, other) for other in others} | {(other, leader.address) for other in others}
        self._cut(links, away_s)
        leader.disk.stuck_until_s = self._simulation.loop.time() + away_s * self._rng.uniform(1, 2)
        return f"{leader.name} for {away_s:.1f} s"

    def flap(self) -> str:
        links = set(cut(self._rng.choice(SHAPES), self._addresses(), self._rng))
        for number in range(8):
            self.after(number * 2 * FLAP_S, lambda: self._cut(links, FLAP_S))
        return f"{len(links)} ways"

    def reset_streams(self) -> str:
        """Every connection of one host breaks."""
        node = self._rng.choice(self._simulation.nodes)
        for stream in list(self._simulation.network.streams):
            if stream.life.address == node.address and stream.peer is not None:
                stream.break_off()
                stream.peer.break_off()
        return node.name

    def worsen_weather(self) -> str:
        conditions = self._simulation.network.conditions
        conditions.loss = self._rng.choice((0.1, 0.4))
        conditions.straggler = self._rng.choice((0.0, 0.05))
        conditions.delay_ms_max = self._rng.choice((5, 60, 200))
        self.after(self._rng.uniform(0.5, 3), self._simulation.calm_weather)
        return f"loss {conditions.loss} delay {conditions.delay_ms_max} ms"

    def crowd(self) -> str:
        """Strangers take all the places for clients of one agent, and more; they stay until the end."""
        if self.crowded is not None:
            return "nobody: strangers are somewhere already"
        self.crowded = self._rng.choice(self._simulation.nodes)
        self._simulation.crowd.gather(self.crowded.http, self._rng)
        return self.crowded.name

    def hoard(self) -> str:
        """Strangers fill what one agent, if possible a leader, has of memory for bodies; they stay until the
        end."""
        if self.hoarded is not None:
            return "nobody: strangers are somewhere already"
        self.hoarded = self._rng.choice(self._leaders() or self._simulation.nodes)
        self._simulation.crowd.hoard(self.hoarded.http, self._rng)
        return self.hoarded.name

    # ---- disks -----------------------------------------------------------------------------------

    def slow_disk(self) -> str:
        node = self._rng.choice(self._simulation.nodes)
        node.disk.sync_ms_max = self._rng.choice((100, 400, 1_500))
        self.after(self._rng.uniform(1, 4), lambda: self._simulation.calm_disk(node))
        return f"{node.name} {node.disk.sync_ms_max} ms"

    def stick_disk(self) -> str:
        node = self._rng.choice(self._simulation.nodes)
        stuck_s = self._rng.choice((0.7, 2.0, 5.0))
        node.disk.stuck_until_s = self._simulation.loop.time() + stuck_s
        return f"{node.name} for {stuck_s} s"

    def _break(self, operation: str) -> str:
        node = self._rng.choice(self._simulation.nodes)
        place = self._rng.choice(ERROR_PLACES)
        fault = Fault(operation, errno.EIO, place, skip=self._rng.randint(0, 5))
        fault.times = self._rng.choice((1, 1, 4))
        fault.partial_bytes = self._rng.choice((0, 100, 1_000)) if operation == "write" else 0
        node.disk.faults.append(fault)
        self._simulation.disk_faults.add(node.address)
        return f"{node.name} {place}"

    def fail_sync(self) -> str:
        return self._break("sync")

    def fail_write(self) -> str:
        return self._break("write")

    def stop_replica(self) -> str:
        """One replica of a host stops while its agent lives, as on a sector that can neither be read
        nor written: if possible a quiet leader, which nobody was about to miss."""
        nodes = [node for node in self._running() if self.broken in (None, node.address) and node.is_ready]
        found = [
            (node, replica)
            for node in nodes
            for replica in (() if node.host is None else node.host.open_replicas())
            if replica.failure is None and node.life is not None and not node.life.is_paused
        ]
        led = [item for item in found if item[1].is_leader]
        chosen = [item for item in led if item[1].core.state.behaviour.quiet] or led or found
        if not chosen or self.counts.get("stop_replica", 0) >= STOPPED_MAX:
            return "nobody"
        node, replica = self._rng.choice(chosen)
        assert node.life is not None
        self.broken = node.address
        self._simulation.disk_faults.add(node.address)
        said = f"{node.name} {replica.group} {replica.core!r}"
        node.life.context.copy().run(replica.fail, "damaged", "a sector of its log takes no write")
        return said

    def fill_disk(self) -> str:
        node = self._rng.choice(self._simulation.nodes)
        node.disk.capacity_bytes = node.disk.used_bytes() + self._rng.choice((0, ROOM_BYTES))
        self._simulation.disk_faults.add(node.address)
        self._simulation.loop.call_later(self._rng.uniform(0.5, 3), self._simulation.free_disk, node)
        return node.name

    def rot(self) -> str:
        """One bit of one stored byte of a log flips, as often as not among the newest ones, which nothing
        behind them proves; on a disk whose process runs or not."""
        nodes = [node for node in self._simulation.nodes if self.rotten in (None, node.address)]
        copied = self._topics_born_whole()
        places = [
            (node, path)
            for node in nodes
            for path in node.disk.segments()
            if any(topic_id in path for topic_id in copied)
        ]
        if not places:
            return "nowhere"
        node, path = self._rng.choice(places)
        self.rotten = node.address
        end = len(node.disk.content(path).rstrip(b"\0"))
        if not end:
            return "nowhere"
        newest = min(end, NEWEST_BYTES if self._rng.random() < 0.5 else end)
        position = end - 1 - self._rng.randrange(newest)
        node.disk.damage(path, position, 1 << self._rng.randrange(8))
        return f"{node.name} {path}@{position}"

    def rot_run(self) -> str:
        """One bit of a sorted run flips."""
        nodes = [node for node in self._simulation.nodes if self.rotten in (None, node.address)]
        places = [(node, path) for node in nodes for path in node.disk.segments() if "/view/" in path]
        places = [(node, path) for node, path in places if node.disk.content(path)]  # else it is just made
        if not places:
            return "nowhere"
        node, path = self._rng.choice(places)
        self.rotten = node.address
        position = self._rng.randrange(len(node.disk.content(path)))
        node.disk.damage(path, position, 1 << self._rng.randrange(8))
        return f"{node.name} {path}@{position}"

    def ruin(self) -> str:
        """A host is killed, and of one log the newest segment is lost whole: its file is gone, or holds zeros
        or rubbish, and its index with it."""
        nodes = [node for node in self._running() if self.rotten in (None, node.address) and node.is_ready]
        nodes = [node for node in nodes if not self._holds_one_of_two(node)]
        places = [(node, path) for node in nodes for path in newest_segments(node.disk)]
        if not places:
            return "nowhere"
        node, path = self._rng.choice(places)
        self.rotten = node.address
        said = self._stop([node], Node.kill)
        disk = node.disk
        disk.lose(path.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX)
        how = self._rng.choice(("gone", "zeros", "rubbish"))
        if how == "gone":
            disk.lose(path)
        else:
            length = len(disk.content(path).rstrip(b"\0"))
            start = 0 if how == "zeros" else min(length, self._rng.choice((0, RUINED_FROM)))
            filled = bytes(length - start) if how == "zeros" else self._rng.randbytes(length - start)
            disk.overwrite(path, start, filled)
        return f"{said} {path} {how}"


def newest_segments(disk: SimDisk) -> list[str]:
    """One of each log."""
    by_log = {path.rpartition("/")[0]: path for path in disk.segments()}
    return sorted(by_log.values())
