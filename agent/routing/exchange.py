"""Keeps this agent's routing table true: says what it holds, hears what others hold.

Law of this file: table.py decides which claim wins. Here claims are collected from the host. When leadership
moves, they are sent to linked peers at once, so that clients learn of it within milliseconds. They are pulled
from a peer whose gossiped placement version is newer than the known one. Hints over links are the quickest;
route events of gossip, which say only that there is news, reach whom a hint did not; the version in the tags
makes it certain.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Protocol

from shoal.agent.durable.ids import GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.log_lines.names import agent_name
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.process.clock import by_turns
from shoal.agent.routing.table import (
    Claim,
    OwnClaims,
    RouteError,
    RouteTable,
    decode_delta,
    decode_request,
    encode_delta,
    encode_request,
)

REFRESH_MS = 1_000  # offsets of own replicas; also the least time between two changes of the gossiped version
PULL_ALL_EVERY = 2  # refreshes between two pulls from everybody, which bring the offsets of others
REFRESH_ALL_EVERY = 10  # refreshes of which one looks at idle replicas too: a thousand take ten milliseconds
CLAIMS_PER_TURN = 64  # of the loop, where nobody waits for them: less than a millisecond
PULL_TIMEOUT_MS = 2_000
PULL_JITTER_MS = 50  # a leadership change seen by all must not make all ask in the same instant
RETRY_S = 0.1
FRESH_S = 0.1
FRESHEN_TIMEOUT_MS = 500  # of a slower peer counts are shown as they were last heard
MAX_PAGES = 64  # of one pull; the rest follows with the next
ANNOUNCE_MS = (
    250  # between two route events: a kill moves hundreds of leaders, Serf keeps 512 events (safety 28)
)
MAX_HINT_CLAIMS = 512  # a kill moves hundreds of leaders; a longer list is pulled (safety 28)

logger = logging.getLogger(__name__)


class Peers(Protocol):
    """The exchange's view of the links and the member list."""

    @property
    def agent_id(self) -> str: ...
    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes: ...
    def send_control(self, agent_id: str, kind: int, payload: bytes) -> bool: ...
    def set_placement(self, run: str, version: int) -> None: ...
    def announce_placement(self, run: str, version: int) -> None: ...
    def live_peers(self) -> list[str]: ...
    def placement_versions(self) -> dict[str, tuple[str, int]]:
        """The (run, placement version) that live members gossip."""

    def known_members(self) -> set[str]:
        """Everybody in the member list, dead or alive."""


class RouteExchange:
    """Owns the RouteTable of this agent."""

    def __init__(
        self,
        *,
        peers: Peers,
        watch: Watch,
        rng: random.Random,
        held: Callable[[], Iterable[GroupId]],
        claim: Callable[[GroupId], Claim | None],
        touched: Callable[[], Iterable[GroupId]],
    ) -> None:
        """`held` and `claim`: the groups with replicas here, and what is said of one. `touched`: those whose
        logs may have grown since this was last asked."""
        self.table = RouteTable()
        self.own = OwnClaims(peers.agent_id, watch.run)
        self._peers = peers
        self._watch = watch
        self._rng = rng
        self._held = held
        self._claim = claim
        self._touched = touched
        self._announced = 0
        self._may_announce_s = 0.0
        self._announcing: asyncio.TimerHandle | None = None
        self._published: tuple[str, int] | None = None
        self._dirty: set[GroupId] = set()
        self._hinted = 0
        self._behind: set[str] = set()
        self._pulling: set[str] = set()
        self._pull_now = asyncio.Event()
        self._flush_scheduled = False
        self._refreshed_s = 0.0
        self._round: asyncio.Task[None] | None = None  # of questions to everybody
        self._next_round: asyncio.Task[None] | None = None

    # ---- what this agent holds -------------------------------------------------------------------

    def group_changed(self, group: GroupId) -> None:
        """The host's on_change: role, term, leader, configuration. One hint per loop turn."""
        self._dirty.add(group)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        dirty, self._dirty = self._dirty, set()
        if self._refresh_some(dirty):
            self._merge_own()
            self._tell()

    def _merge_own(self) -> None:
        before = self.table.version
        self.table.apply(self.own.delta(*self.table.known(self._peers.agent_id)))
        if self.table.version != before:
            self._watch.changed()

    def _tell(self) -> None:
        self._hint()
        if self._announcing is None:
            loop = asyncio.get_running_loop()
            self._announcing = loop.call_at(max(loop.time(), self._may_announce_s), self._announce_now)

    def _announce_now(self) -> None:
        """At most one route event in ANNOUNCE_MS, and always one after the last change."""
        self._announcing = None
        self._may_announce_s = asyncio.get_running_loop().time() + ANNOUNCE_MS / 1_000
        if self._announced != self.own.placement_version:
            self._announced = self.own.placement_version
            self._peers.announce_placement(self.own.run, self._announced)

    def _hint(self) -> None:
        delta = self.own.delta(self.own.run, self._hinted, MAX_HINT_CLAIMS)
        self._hinted = self.own.counter
        if delta.more:
            return  # too much for a hint: the peers will see the gossiped version and ask
        payload = encode_delta(delta)
        for peer in self._peers.live_peers():
            self._peers.send_control(peer, PeerMessage.ROUTES_HINT, payload)

    def freshen(self) -> None:
        """Before offsets are shown: those of this agent's replicas should be of now. All of them are walked
        from time to time only.
        """
        now_s = asyncio.get_running_loop().time()
        self.refresh(wholly=now_s - self._refreshed_s >= FRESH_S)

    async def freshen_everywhere(self) -> None:
        """The same, of the live peers' replicas too, as far as these answer in time. A caller that asks while
        others are being answered shares the next round: an answer is never older than the question."""
        self.freshen()
        if not self._peers.live_peers():
            return
        if self._next_round is None:
            self._next_round = asyncio.create_task(self._ask_everybody(self._round))
        await asyncio.shield(self._next_round)

    async def _ask_everybody(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        self._round, self._next_round = self._next_round, None
        pulls = [asyncio.create_task(self._pull(peer)) for peer in self._peers.live_peers()]
        if pulls:
            _, late = await asyncio.wait(pulls, timeout=FRESHEN_TIMEOUT_MS / 1_000)
            for pull in late:
                pull.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)

    def refresh(self, *, wholly: bool = True) -> None:
        """Offsets and sizes of everything held, or of what has been at work since the last time, and the
        version that gossip carries."""
        touched = self._touched()
        if wholly:
            self._refreshed_s = asyncio.get_running_loop().time()
            touched = self._all()
        self._show(moved=self._refresh_some(touched))

    async def _refresh_in_turns(self) -> None:
        """All of it, while others have the loop in between."""
        self._refreshed_s = asyncio.get_running_loop().time()
        self._touched()  # they are among all
        moved = False
        async for group in by_turns(self._all(), CLAIMS_PER_TURN):
            moved |= self._refresh_some((group,))
        self._show(moved=moved)

    def _all(self) -> Iterable[GroupId]:
        """Those held, and those claimed to be."""
        return dict.fromkeys((*self._held(), *(claim.group for claim in self.own.held())))

    def _show(self, *, moved: bool) -> None:
        self._merge_own()
        if moved:
            self._tell()
        published = (self.own.run, self.own.placement_version)
        if published != self._published:
            self._published = published
            self._peers.set_placement(*published)

    def _refresh_some(self, groups: Iterable[GroupId]) -> bool:
        moved = False
        for group in groups:
            claim = self._claim(group)
            moved |= self.own.remove(group) if claim is None else self.own.set(claim)
        return moved

    # ---- what others hold ------------------------------------------------------------------------

    async def on_pull(self, _peer: str, payload: bytes) -> bytes:
        """The claims of this agent since the number asked for, as they are now. Raises RouteError."""
        run, after = decode_request(payload)
        self.refresh(wholly=False)
        return encode_delta(self.own.delta(run, after))

    def on_hint(self, peer: str, payload: bytes) -> None:
        """A peer's newest claims. If they do not follow what is known, ask. Raises PeerMessageError."""
        delta = decode_delta(payload)
        if delta.agent_id != peer:
            raise PeerMessageError("a hint about somebody else")
        before = self.table.version
        if not self.table.apply(delta):
            self._behind.add(peer)
            self._pull_now.set()
        if self.table.version != before:
            self._watch.changed()

    def on_announcement(self, peer: str, run: str, version: int) -> None:
        """A route event: that agent's placement has this version. One that is known changes nothing."""
        known_run, known_version = self.table.placement_known(peer)
        if peer in self._peers.live_peers() and (known_run != run or known_version < version):
            self._behind.add(peer)
            self._pull_now.set()

    def look(self) -> None:
        """The member list or its tags have changed: find out who must be asked, and whom to forget."""
        for peer, (run, version) in self._peers.placement_versions().items():
            known_run, known_version = self.table.placement_known(peer)
            if known_run != run or known_version < version:
                self._behind.add(peer)
                self._pull_now.set()
        members = self._peers.known_members()
        for agent in self.table.agents():
            if agent not in members and agent != self._peers.agent_id:
                self.table.forget(agent)
                self._watch.changed()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._refresh_for_ever())
                tasks.create_task(self._pull_for_ever(tasks))
        finally:
            if self._announcing is not None:
                self._announcing.cancel()
            for asking in (self._round, self._next_round):
                if asking is not None:
                    asking.cancel()

    async def _refresh_for_ever(self) -> None:
        rounds = 0
        while True:
            if rounds % REFRESH_ALL_EVERY == 0:
                await self._refresh_in_turns()
            else:
                self.refresh(wholly=False)
            self.look()
            rounds += 1
            if rounds % PULL_ALL_EVERY == 0:
                self._behind.update(self._peers.live_peers())
                self._pull_now.set()
            await asyncio.sleep(REFRESH_MS * self._rng.uniform(0.9, 1.1) / 1_000)

    async def _pull_for_ever(self, tasks: asyncio.TaskGroup) -> None:
        """Each peer is asked by itself, one question at a time: one that has died answers nobody, and the
        others' news must not wait for that."""
        while True:
            await self._pull_now.wait()
            await asyncio.sleep(self._rng.uniform(0, PULL_JITTER_MS) / 1_000)
            self._pull_now.clear()
            for peer in self._behind - self._pulling:
                tasks.create_task(self._pull_alone(peer))
            self._behind &= self._pulling

    async def _pull_alone(self, peer: str) -> None:
        self._pulling.add(peer)
        try:
            await self._pull(peer)
        finally:
            self._pulling.discard(peer)
        if peer in self._behind:
            self._pull_now.set()

    async def _pull(self, peer: str) -> None:
        before = self.table.version
        try:
            for _ in range(MAX_PAGES):
                request = encode_request(*self.table.known(peer))
                delta = decode_delta(
                    await self._peers.request(peer, PeerMessage.ROUTES_PULL, request, PULL_TIMEOUT_MS)
                )
                if delta.agent_id != peer or not self.table.apply(delta):
                    raise RouteError("an answer that does not follow the question")
                if not delta.more:
                    break
        except (PeerUnavailable, PeerRequestFailed, RouteError) as error:
            logger.debug("cannot ask %s which partitions it leads: %s", agent_name(peer), error)
            # A peer that has just joined is not linked yet; the next look() would come a second later.
            if peer in self._peers.live_peers():
                self._behind.add(peer)
                asyncio.get_running_loop().call_later(RETRY_S, self._pull_now.set)
        if self.table.version != before:
            self._watch.changed()
