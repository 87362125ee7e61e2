"""The loop that gives every replica its turns.

Law of this file: input first, then deadlines (safety 26). A caller that steps a replica's core schedules the
replica. A turn gives each scheduled replica one ready() and then flushes the outbox. One heap holds the
nearest deadline of every replica; it is looked at only when the input that had already arrived has been
stepped. It knows neither groups nor peers.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Sized
from itertools import islice

from shoal.agent.partition.replica import Replica
from shoal.agent.process.clock import Clock
from shoal.replication.roles.transitions import Role

INPUT_ROUNDS_MAX = 8
"""Turns of the event loop that deadlines wait for input still arriving; a flood must not stop time."""
IDLE_WAKE_MS = 1_000
MAX_CAMPAIGNS = 32
"""Elections under way here at a time. An agent that leads a thousand groups leaves all of them at once: were
all of them to ask in the same instant, on both sides, the answers would come when the next elections have
begun, for ever. One that is decided makes room for the next, so that a slow machine begins fewer."""
CAMPAIGN_MS = 600
"""Of an election that nobody can win, until another group may have its turn: an election timeout."""
CAMPAIGN_PAUSE_MS = 20
"""How long a group waits before it looks for room again."""

MAX_TURNS = 64
"""Replicas served in one round of the event loop, some 20 ms of work: behind a thousand at once, peers would
hear nothing of this agent for as long as they wait for a leader."""

CAMPAIGNING = (Role.PRE_CANDIDATE, Role.CANDIDATE)

logger = logging.getLogger(__name__)

_UNTOLD: Sized = (None, None)
"""Of a loop that does not tell: never alone."""


class Burst:
    """`with` it around several reasons for a turn: one turn follows, and none is planned before."""

    __slots__ = ("_at_once", "_turns")

    def __init__(self, turns: "Scheduler", *, at_once: bool) -> None:
        self._turns = turns
        self._at_once = at_once

    def __enter__(self) -> None:
        self._turns.in_burst = True

    def __exit__(self, *_: object) -> None:
        self._turns.in_burst = False
        if self._turns.is_wanted:
            self._turns.end_burst(at_once=self._at_once)


class Scheduler:
    """`flush_outbox()` is called at the end of every turn. Milliseconds are the clock's monotonic ones."""

    def __init__(self, clock: Clock, flush_outbox: Callable[[], None]) -> None:
        self._clock = clock
        self._flush_outbox = flush_outbox
        self._dirty: dict[Replica, None] = {}
        self._scheduled: asyncio.Handle | None = None
        self._serving = False
        self.in_burst = False
        self.is_wanted = False
        """A turn was asked for, and is planned, or follows at the end of the burst."""
        self.burst = Burst(self, at_once=False)
        """Input that is handed out, or an append. Where nothing else arrived in this round of the event loop,
        the turn follows in the same call; what arrives together shares a batch, a sync and a frame to each
        peer."""
        self.completions = Burst(self, at_once=True)
        """Everything that the disk had. The turn follows in the same call: a round of the event loop before
        the answers go out is a tenth of a small append's time."""
        self._deadlines: list[tuple[int, int, Replica]] = []
        self._deadline_of: dict[Replica, int] = {}
        self._pushes = 0
        self._campaigning: dict[Replica, int] = {}
        """Replicas whose elections are under way, and since when."""
        self._touched: dict[Replica, None] = {}
        self._sleep: asyncio.Future[None] | None = None
        self._ready: Sized | None = None
        """What the event loop is about to run, once it was asked for."""
        self.inputs = 0
        """Counted up by whoever hands input out: deadlines wait until no more arrives."""
        self.stopping = False

    def schedule(self, replica: Replica) -> None:
        """Give the replica a turn once the input of this round of the event loop has been stepped."""
        self._dirty[replica] = None
        if not self.is_wanted:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        """There is something in the outbox; a turn under way takes it along."""
        if self._scheduled is None and not self._serving:
            self.is_wanted = True
            if not self.in_burst:
                self._scheduled = asyncio.get_running_loop().call_soon(self._turn)

    def end_burst(self, *, at_once: bool) -> None:
        """Give the scheduled replicas their turn: now where the burst came alone or `at_once`, else soon."""
        scheduled, ready = self._scheduled, self._ready
        if ready is None:
            # Callbacks of this round and the next; asyncio's own loop tells them, another one need not.
            ready = self._ready = getattr(asyncio.get_running_loop(), "_ready", _UNTOLD)
        if at_once or len(ready) == (scheduled is not None):
            if scheduled is not None:
                scheduled.cancel()
            self._turn()
        elif scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._turn)

    def forget(self, replica: Replica) -> None:
        self._dirty.pop(replica, None)
        self._deadline_of.pop(replica, None)
        self._campaigning.pop(replica, None)
        self._touched.pop(replica, None)

    def take_touched(self) -> list[Replica]:
        """Replicas with a turn since the last call: the logs of all others are as they were."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def _turn(self) -> None:
        self._scheduled = None
        self.is_wanted = False
        self._serving = True
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            if len(dirty) > MAX_TURNS:
                waiting = iter(dirty)
                dirty = dict.fromkeys(islice(waiting, MAX_TURNS))
                self._dirty = dict.fromkeys(waiting)
            now_ms = self._clock.now_ms()
            for replica in dirty:
                if replica.failure is None:
                    self._give_turn(replica, now_ms)
            self._touched.update(dirty)
        self._flush_outbox()
        self._serving = False
        if self._dirty:
            # Replicas that were left, or scheduled meanwhile, have their turn in the next round, after its
            # input.
            self.schedule_flush()

    def _give_turn(self, replica: Replica, now_ms: int) -> None:
        try:
            replica.turn(now_ms)
        except Exception:
            # A bug in one group must not take the others along; this replica says nothing more.
            logger.exception("%s: the replica failed in its turn; this is a bug", replica.group)
            replica.fail("damaged", "an internal error; see the agent's log")
            return
        nearest = replica.deadline()
        known = self._deadline_of.get(replica)
        if nearest is None or (known is not None and known <= nearest):
            return  # an earlier look is harmless: it finds nothing due and asks again
        self._push_deadline(replica, nearest)
        if self._deadlines[0][0] == nearest:
            self._wake_up()

    def _push_deadline(self, replica: Replica, deadline_ms: int) -> None:
        self._deadline_of[replica] = deadline_ms
        self._pushes += 1
        heapq.heappush(self._deadlines, (deadline_ms, self._pushes, replica))

    async def run(self) -> None:
        """Serve deadlines until stopped or cancelled."""
        while not self.stopping:
            await self._sleep_until_deadline()
            await self._let_input_in()
            self._serve_deadlines()

    def stop(self) -> None:
        """`run` ends soon."""
        self.stopping = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    async def _sleep_until_deadline(self) -> None:
        now_ms = self._clock.now_ms()
        nearest = self._deadlines[0][0] if self._deadlines else now_ms + IDLE_WAKE_MS
        if nearest <= now_ms:
            return
        # Not asyncio.timeout and an event: these cost a leader twenty calls more at each deadline.
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        timer = loop.call_later((nearest - now_ms) / 1000, self._wake_up)
        try:
            await self._sleep
        finally:
            timer.cancel()
            self._sleep = None

    async def _let_input_in(self) -> None:
        """Give sockets their turn before time is looked at: after a stall, heartbeats wait in their
        buffers."""
        for _ in range(INPUT_ROUNDS_MAX):
            seen = self.inputs
            # Twice: the first round of the event loop polls the sockets, the second runs what they delivered.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if seen == self.inputs:
                return

    def _serve_deadlines(self) -> None:
        now_ms = self._clock.now_ms()
        self._campaigning = {
            replica: since_ms
            for replica, since_ms in self._campaigning.items()
            if replica.core.role in CAMPAIGNING and now_ms - since_ms < CAMPAIGN_MS
        }
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline_ms, _, replica = heapq.heappop(self._deadlines)
            if self._deadline_of.get(replica) != deadline_ms:
                continue  # an earlier one took its place, or the replica is closed
            del self._deadline_of[replica]
            if replica.failure is not None:
                continue
            nearest = replica.deadline()
            if nearest is None or nearest > now_ms:
                # The event that it would have looked for, such as an acknowledgement, has come.
                if nearest is not None:
                    self._push_deadline(replica, nearest)
                continue
            if self._may_wake(replica, now_ms):
                self._wake(replica, now_ms)
            else:
                self._push_deadline(replica, now_ms + CAMPAIGN_PAUSE_MS)

    def _may_wake(self, replica: Replica, now_ms: int) -> bool:
        """Whether it would not begin an election now, or there is room for one more. Other work of such a
        replica can wait as well."""
        deadline_ms = replica.core.deadline()
        asks = deadline_ms is not None and deadline_ms <= now_ms and replica.core.role is not Role.LEADER
        if not asks or replica in self._campaigning:
            return True
        if len(self._campaigning) >= MAX_CAMPAIGNS:
            return False
        self._campaigning[replica] = now_ms
        return True

    def _wake(self, replica: Replica, now_ms: int) -> None:
        try:
            deadline_ms = replica.core.deadline()
            if deadline_ms is not None and deadline_ms <= now_ms:
                replica.core.wake(now_ms)
        except Exception:
            logger.exception("%s: the replica failed at a deadline; this is a bug", replica.group)
            replica.fail("damaged", "an internal error; see the agent's log")
            return
        self.schedule(replica)
