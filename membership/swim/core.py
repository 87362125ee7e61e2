"""One node's SWIM state machine, with Lifeguard, as memberlist plays it.

Law of this file: everything that changes what is believed of a node happens here. It
never learns what time it is, which socket exists, or what a user message means.

The driver calls step() with what arrived, wake() once deadline() has come, takes
ready(), does it, and says advance(). Several things it must know:

- A restarted node begins at incarnation 1 again, so its peers ignore it until it finds
  itself in their push/pull, left, dead or with another meta, and refutes with a higher
  incarnation. A join therefore needs the exchange.
- `dead` about oneself from oneself is a leave; from anybody else it is refuted.
"""

import random
from dataclasses import replace
from typing import NamedTuple

from shoal.membership.config import GossipConfig, push_pull_interval_ms
from shoal.membership.swim.broadcasts import Broadcast, retransmit_limit
from shoal.membership.swim.claims import (
    Node,
    NodeTable,
    Verdict,
    judge_alive,
    judge_dead,
    judge_suspect,
)
from shoal.membership.swim.former_life import FormerLife
from shoal.membership.swim.piggyback import Outbox
from shoal.membership.swim.prober import Awareness, Prober
from shoal.membership.swim.ready import (
    Change,
    ChangeKind,
    Datagram,
    Exchange,
    Exchanged,
    Input,
    StreamProbed,
    SwimReady,
)
from shoal.membership.swim.stranger_probe import StrangerProbe
from shoal.membership.swim.suspicion import Suspicion, suspicion_bounds
from shoal.membership.wire.messages import (
    MAX_INCARNATION,
    VSN,
    Ack,
    Alive,
    Dead,
    Endpoint,
    IndirectPing,
    Message,
    Nack,
    NodeState,
    Ping,
    PushPull,
    State,
    Suspect,
    User,
    encode_message,
)

CONTESTED_RETRY_MS = 2_000
"""A node that finds its name listed under its former address exchanges state again so
soon, until the old record has died and it is let in."""


STOOD_STILL_INTERVALS = 3
"""The prober wants to be woken once per (stretched) interval. A node woken so many intervals later than
that has stood still: longer than a busy loop delays a timer, no longer than the shortest suspicion."""


class SwimStatistics(NamedTuple):
    """Counters since the start, and sizes now."""

    members: int
    alive: int
    suspect: int
    health_score: int
    probes: int
    failed_probes: int
    refutations: int
    queued_broadcasts: int
    dropped_packets: int


class SwimCore:
    """The membership of one node. See the file's head for how to drive it."""

    def __init__(
        self, config: GossipConfig, endpoint: Endpoint, meta: bytes, rng: random.Random, now_ms: int
    ) -> None:
        self._config = config
        self._rng = rng
        local = Node(config.name, endpoint, meta, VSN, 1, State.ALIVE, now_ms)
        self.table = NodeTable(local)
        self.outbox = Outbox(
            config.content_bytes, lambda: retransmit_limit(config.retransmit_mult, len(self.table))
        )
        self._awareness = Awareness(config.awareness_max)
        self._prober = Prober(config, self.table, self.outbox, self._awareness, rng, now_ms)
        self._suspicions: dict[str, Suspicion] = {}
        self._exchanges: list[Exchange] = []
        self._changes: list[Change] = []
        self._user_messages: list[bytes] = []
        self._woken_ms = now_ms
        self._last_gossip_ms = now_ms - config.gossip_interval_ms
        self._next_push_pull_ms = now_ms + rng.randrange(1, config.push_pull_interval_ms + 1)
        self._refutations = 0
        self._former = FormerLife()
        self._stranger_probe = StrangerProbe()
        self.leaving = False
        self._note(ChangeKind.JOIN, local)
        self._announce()

    def __repr__(self) -> str:
        listed = sorted(self.table, key=lambda node: node.name)
        nodes = " ".join(f"{node.name}={node.state.name.lower()}/{node.incarnation}" for node in listed)
        return f"<SwimCore {self._config.name} health={self._awareness.score} {nodes}>"

    # What arrives, and time

    def step(self, event: Input, now_ms: int) -> None:
        """Something arrived."""
        self._stranger_probe.next_event()
        match event:
            case Datagram(source, messages):
                for message in messages:
                    self._on_message(source, message, now_ms)
                # We have refuted this already, and gossip has passed that member by: in a small pool one in
                # fifty misses a given word. Left alone it would bury us, however often it pings us meanwhile.
                if any(self._is_outdated_accusation(message) for message in messages) and not self.leaving:
                    self.outbox.send(source, self._own_claim())
            case Exchanged(state):
                self._merge(state, now_ms)
            case StreamProbed(sequence, reached):
                if self._former.is_over(sequence, reached=reached):
                    # Under the listed incarnation: a peer that knows us by a newer one is not concerned.
                    name = self.table.local.name
                    left = encode_message(Dead(self._former.incarnation, name, name))
                    self._former.left(self.outbox.own.queue(left, name))
                else:
                    self._prober.on_stream_probed(sequence, reached)

    def _is_outdated_accusation(self, message: Message) -> bool:
        local = self.table.local
        return (
            isinstance(message, Suspect | Dead)
            and message.node == local.name
            and message.incarnation < local.incarnation
        )

    def _on_message(self, source: Endpoint, message: Message, now_ms: int) -> None:
        match message:
            case Ping():
                self._prober.on_ping(source, message)
            case IndirectPing():
                self._prober.on_indirect_ping(source, message, now_ms)
            case Ack(sequence):
                self._prober.on_ack(message)
                proven = self._stranger_probe.answered(sequence, source)
                if proven is not None:
                    self._let_in(proven, now_ms)
            case Nack():
                self._prober.on_nack(message)
            case Alive():
                self._on_alive(message, now_ms)
            case Suspect():
                self._on_suspect(message, now_ms)
            case Dead():
                self._on_dead(message, now_ms)
            case User(payload):
                self._user_messages.append(payload)

    def deadline(self) -> int:
        """Call wake() by then."""
        deadlines = [self._prober.deadline(), self._next_push_pull_ms]
        deadlines += [suspicion.deadline_ms for suspicion in self._suspicions.values()]
        if self.outbox.pending() and len(self.table) > 1:
            deadlines.append(self._last_gossip_ms + self._config.gossip_interval_ms)
        return min(deadlines)

    def wake(self, now_ms: int) -> None:
        """Time has passed: probe, bury the suspects who stayed silent, gossip, exchange state."""
        late_ms = now_ms - self._woken_ms - self._awareness.scale(self._config.probe_interval_ms)
        if late_ms > STOOD_STILL_INTERVALS * self._config.probe_interval_ms:
            # This process stood still, and may have lost what came meanwhile: silence in that time proves
            # nothing about the others, and something about our own health.
            for suspicion in self._suspicions.values():
                suspicion.postpone(late_ms)
            self._prober.abandon()
            self._awareness.apply(1)
        self._woken_ms = now_ms
        if len(self.table) >= self._config.max_members:
            self.table.make_room()
        silent = self._prober.wake(now_ms)
        if silent is not None:
            accusation = Suspect(silent.incarnation, silent.name, self._config.name)
            self._on_suspect(accusation, now_ms)
        for name in [name for name, held in self._suspicions.items() if now_ms >= held.deadline_ms]:
            suspect = self.table.get(name)
            assert suspect is not None
            assert suspect.state == State.SUSPECT
            self._on_dead(Dead(suspect.incarnation, name, self._config.name), now_ms)
        if self.outbox.pending() and now_ms >= self._last_gossip_ms + self._config.gossip_interval_ms:
            self._last_gossip_ms = now_ms
            self._gossip(now_ms)
        if self._former.was_told() and not self.leaving:
            self._outbid(self._former.incarnation)
        if now_ms >= self._next_push_pull_ms:
            interval_ms = push_pull_interval_ms(self._config.push_pull_interval_ms, len(self.table))
            self._next_push_pull_ms = now_ms + interval_ms
            for node in self.table.sample(self._rng, 1, lambda node: node.state == State.ALIVE):
                self._exchanges.append(Exchange(node.endpoint, join=False))

    def _gossip(self, now_ms: int) -> None:
        chosen = self.table.sample(
            self._rng, self._config.gossip_nodes, lambda node: self._listens(node, now_ms)
        )
        # In a small pool with some dead most of what is told would be told to the dead, and a confirmation
        # that the others miss makes the next suspicion three times as long.
        others_alive = any(node.state == State.ALIVE for node in self.table if node is not self.table.local)
        lonely = not any(node.state == State.ALIVE for node in chosen) and not others_alive
        for node in chosen:
            counted = lonely or node.state == State.ALIVE
            if not self.outbox.gossip(node.endpoint, checksum=node.protocol_max >= 5, counted=counted):
                return

    def _listens(self, node: Node, now_ms: int) -> bool:
        """Whether gossip goes there: it may live, or was found dead a while ago and may not know of it."""
        if node.state == State.DEAD:
            return node.changed_ms > now_ms - self._config.gossip_to_dead_ms
        return not node.gone

    # Claims

    def _on_alive(self, claim: Alive, now_ms: int) -> None:
        node = self.table.get(claim.node)
        verdict = judge_alive(
            node,
            claim,
            is_self=claim.node == self._config.name,
            leaving=self.leaving,
            reclaim_ms=self._config.dead_reclaim_ms,
            now_ms=now_ms,
        )
        match verdict:
            case Verdict.ACCEPT:
                self._accept_alive(node, claim, now_ms)
            case Verdict.REFUTE:
                self._refute(claim.incarnation)
            case Verdict.CONFLICT:
                assert node is not None
                self._on_conflict(node, claim.endpoint, claim.meta, now_ms)
                if node is self.table.local:
                    self._look_for_former_life(claim.endpoint, claim.incarnation)
            case _:
                assert verdict is Verdict.IGNORE

    def _on_conflict(self, node: Node, endpoint: Endpoint, meta: bytes, now_ms: int) -> None:
        """One name, two addresses: the first one heard keeps it while it lives."""
        self._note(ChangeKind.CONFLICT, node, endpoint, meta)
        if node is self.table.local:
            self._next_push_pull_ms = min(self._next_push_pull_ms, now_ms + CONTESTED_RETRY_MS)

    def _look_for_former_life(self, endpoint: Endpoint, incarnation: int) -> None:
        if not self.leaving and self._former.may_be(endpoint, self.table.local.endpoint):
            self._former.asked(self._prober.ask_for_ourselves(endpoint), incarnation)

    def _accept_alive(self, node: Node | None, claim: Alive, now_ms: int) -> None:
        if node is None:
            if len(self.table) >= self._config.max_members:
                # A known node stays, unless the stranger answers and the known one never did.
                local = self.table.local
                ping = self._stranger_probe.ring(claim, local.endpoint, local.name, self._rng)
                if ping is not None:
                    self.outbox.send_alone(claim.endpoint, ping)
                return
            node = Node(claim.node, claim.endpoint, b"", b"", claim.incarnation, State.DEAD, now_ms)
            self.table.add(node, self._rng)
        before, known_meta, known_endpoint = node.state, node.meta, node.endpoint
        self._suspicions.pop(node.name, None)
        node.answered = node.answered and node.endpoint == claim.endpoint
        node.endpoint, node.meta, node.incarnation = claim.endpoint, claim.meta, claim.incarnation
        node.vsn = claim.vsn or node.vsn
        self._set_state(node, State.ALIVE, now_ms)
        self.outbox.own.queue(encode_message(replace(claim, vsn=node.vsn)), node.name)
        if before in (State.DEAD, State.LEFT):
            self._note(ChangeKind.JOIN, node)
        elif (known_meta, known_endpoint) != (node.meta, node.endpoint):
            self._note(ChangeKind.UPDATE, node)
        elif before == State.SUSPECT:
            self._note(ChangeKind.REFUTED, node)

    def _let_in(self, claim: Alive, now_ms: int) -> None:
        """A stranger has answered where it claims to be."""
        if self.table.get(claim.node) is None and not self._has_room(now_ms):
            return
        self._on_alive(claim, now_ms)
        node = self.table.get(claim.node)
        if node is not None and node.endpoint == claim.endpoint:
            node.answered = True

    def _has_room(self, now_ms: int) -> bool:
        """Whether there is, perhaps because one that never answered has just been forgotten."""
        if len(self.table) < self._config.max_members:
            return True
        node = self.table.unproven(self._rng)
        if node is None:
            return False
        self._suspicions.pop(node.name, None)
        if not node.gone:
            self._set_state(node, State.DEAD, now_ms)
            self._note(ChangeKind.LEAVE, node)
        self.table.remove(node)
        return True

    def _on_suspect(self, claim: Suspect, now_ms: int) -> None:
        node = self.table.get(claim.node)
        verdict = judge_suspect(node, claim, is_self=claim.node == self._config.name)
        if verdict is Verdict.REFUTE:
            self._refute(claim.incarnation)
        elif verdict is Verdict.CONFIRM:
            if self._suspicions[claim.node].confirm(claim.accuser):
                self.outbox.own.queue(encode_message(claim), claim.node)
        elif verdict is Verdict.ACCEPT:
            assert node is not None
            node.incarnation = claim.incarnation
            self._set_state(node, State.SUSPECT, now_ms)
            bounds = suspicion_bounds(
                mult=self._config.suspicion_mult,
                max_mult=self._config.suspicion_max_mult,
                probe_interval_ms=self._config.probe_interval_ms,
                members=len(self.table),
            )
            self._suspicions[claim.node] = Suspicion(claim.accuser, bounds, now_ms)
            self.outbox.own.queue(encode_message(claim), claim.node)
            self._note(ChangeKind.SUSPECT, node)

    def _on_dead(self, claim: Dead, now_ms: int) -> Broadcast | None:
        node = self.table.get(claim.node)
        is_self = claim.node == self._config.name
        verdict = judge_dead(node, claim, is_self=is_self, leaving=self.leaving)
        if verdict is Verdict.REFUTE:
            self._refute(claim.incarnation)
        if verdict is not Verdict.ACCEPT:
            return None
        assert node is not None
        self._suspicions.pop(claim.node, None)
        node.incarnation = claim.incarnation
        self._set_state(node, State.LEFT if claim.node == claim.accuser else State.DEAD, now_ms)
        self._note(ChangeKind.LEAVE, node)
        return self.outbox.own.queue(encode_message(claim), claim.node)

    def _refute(self, accused_incarnation: int) -> None:
        """Outbid the accusation. The last incarnation cannot be outbid; only a hostile peer claims it."""
        if accused_incarnation >= MAX_INCARNATION:
            return
        self._refutations += 1
        self._awareness.apply(1)
        self._outbid(accused_incarnation)

    def _outbid(self, incarnation: int) -> None:
        local = self.table.local
        local.incarnation = min(max(local.incarnation, incarnation) + 1, MAX_INCARNATION)
        self._announce()

    def _announce(self) -> None:
        if self._former.is_being_told:
            return  # the same name: it would take the place of what has to be heard before it
        self.outbox.own.queue(encode_message(self._own_claim()), self.table.local.name)

    def _own_claim(self) -> Alive:
        local = self.table.local
        return Alive(local.incarnation, local.name, local.endpoint, local.meta, local.vsn)

    def _set_state(self, node: Node, state: State, now_ms: int) -> None:
        if node.state != state:
            node.state = state
            node.changed_ms = now_ms

    def _note(
        self, kind: ChangeKind, node: Node, endpoint: Endpoint | None = None, meta: bytes | None = None
    ) -> None:
        """`endpoint`, `meta`: somebody else's who claims the name."""
        where, what = endpoint or node.endpoint, node.meta if meta is None else meta
        answered = node.answered and where == node.endpoint
        self._changes.append(
            Change(kind, node.name, where, what, node.vsn, node.incarnation, node.state, answered)
        )

    # Push/pull

    def local_nodes(self) -> tuple[NodeState, ...]:
        """All records, for a push/pull."""
        return tuple(node.to_state() for node in self.table)

    def _merge(self, state: PushPull, now_ms: int) -> None:
        """A dead record of a peer counts only as a suspicion here: the accused gets its chance to refute."""
        local = self.table.local
        for remote in state.nodes:
            if (
                remote.state != State.ALIVE
                and remote.name == local.name
                and remote.endpoint != local.endpoint
            ):
                self._on_conflict(
                    local, remote.endpoint, remote.meta, now_ms
                )  # our former address dies there: come again soon
                if remote.state == State.SUSPECT:
                    self._look_for_former_life(remote.endpoint, remote.incarnation)
            if remote.state == State.ALIVE:
                claim = Alive(remote.incarnation, remote.name, remote.endpoint, remote.meta, remote.vsn)
                self._on_alive(claim, now_ms)
            elif remote.state == State.LEFT:
                self._on_dead(Dead(remote.incarnation, remote.name, remote.name), now_ms)
            else:
                self._on_suspect(Suspect(remote.incarnation, remote.name, self._config.name), now_ms)

    # What the owner of this node wants

    def set_meta(self, meta: bytes) -> None:
        """Change our tags: a new incarnation, told to all."""
        local = self.table.local
        if meta == local.meta or self.leaving:
            return
        local.meta = meta
        local.incarnation += 1
        self._announce()
        self._note(ChangeKind.UPDATE, local)

    def move(self, endpoint: Endpoint) -> None:
        """This node is reached elsewhere from now on. A name moves only once it has left: it leaves its
        former address first, and claims the new one when that was told."""
        local = self.table.local
        if endpoint == local.endpoint or self.leaving:
            return
        left = encode_message(Dead(local.incarnation, local.name, local.name))
        self._former.moved(self.outbox.own.queue(left, local.name), local.incarnation)
        local.endpoint = endpoint
        self._note(ChangeKind.UPDATE, local)

    def leave(self, now_ms: int) -> Broadcast | None:
        """Say that we go; the broadcast turns finished once it was told. None when we had left already."""
        self.leaving = True
        local = self.table.local
        return self._on_dead(Dead(local.incarnation, local.name, local.name), now_ms)

    def listeners(self, now_ms: int) -> int:
        """Other nodes that gossip goes to."""
        local = self.table.local
        return sum(1 for node in self.table if node is not local and self._listens(node, now_ms))

    # Convention

    def ready(self) -> SwimReady | None:
        """What is to be done; None when there is nothing."""
        probes = self._prober.stream_probes
        if not (self.outbox.packets or probes or self._exchanges or self._changes or self._user_messages):
            return None
        return SwimReady(
            packets=tuple(self.outbox.packets),
            stream_probes=tuple(probes),
            exchanges=tuple(self._exchanges),
            changes=tuple(self._changes),
            user_messages=tuple(self._user_messages),
        )

    def advance(self, ready: SwimReady) -> None:
        """It has been done (or will be: nothing here waits for an outcome)."""
        del self.outbox.packets[: len(ready.packets)]
        del self._prober.stream_probes[: len(ready.stream_probes)]
        del self._exchanges[: len(ready.exchanges)]
        del self._changes[: len(ready.changes)]
        del self._user_messages[: len(ready.user_messages)]

    def statistics(self) -> SwimStatistics:
        states = [node.state for node in self.table]
        return SwimStatistics(
            members=len(states),
            alive=states.count(State.ALIVE),
            suspect=states.count(State.SUSPECT),
            health_score=self._awareness.score,
            probes=self._prober.probes,
            failed_probes=self._prober.failures,
            refutations=self._refutations,
            queued_broadcasts=self.outbox.pending(),
            dropped_packets=self.outbox.dropped,
        )

    def check_invariants(self) -> None:
        self.table.check_invariants()
        self._stranger_probe.check_invariants()
        self._prober.check_invariants()
        for node in self.table:
            assert (node.state == State.SUSPECT) == (node.name in self._suspicions)
        local = self.table.local
        assert local.vsn == VSN
        assert local.state == State.ALIVE or self.leaving
