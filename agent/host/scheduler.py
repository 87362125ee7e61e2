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
        turns = self._turns
        turns.in_burst = False
        if turns.is_wanted or turns.dirty:
            turns.end_burst(at_once=self._at_once)


class Scheduler:
    """`flush_outbox()` is called at the end of a turn that put something there, or for which something was
    there. Milliseconds are the clock's monotonic ones."""

    def __init__(self, clock: Clock, flush_outbox: Callable[[], None]) -> None:
        self._clock = clock
        self._flush_outbox = flush_outbox
        self._is_outbox_filled = False
        self.dirty: dict[Replica, None] = {}
        """Replicas that are to have a turn."""
        self._scheduled: asyncio.Handle | None = None
        self._serving = False
        self._follows: Callable[[], None] | None = None
        """The call behind the turn under way."""
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
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """By the deadline; an earlier one than all of them makes another, and they stay for those behind."""
        self._is_awake = False
        """A deadline has come. It is served after the input that has arrived."""
        self._over: asyncio.Future[None] | None = None
        """While `run` does."""
        self._ready: Sized | None = None
        """What the event loop is about to run, once it was asked for."""
        self.inputs = 0
        """Counted up by whoever hands input out: deadlines wait until no more arrives."""
        self.stopping = False

    def schedule(self, replica: Replica) -> None:
        """Give the replica a turn once the input of this round of the event loop has been stepped."""
        self.dirty[replica] = None
        if not self.is_wanted and not self.in_burst:
            self._plan_turn()

    def schedule_flush(self) -> None:
        """There is something in the outbox; a turn under way takes it along."""
        self._is_outbox_filled = True
        self._plan_turn()

    def _plan_turn(self) -> None:
        if self._scheduled is None and not self._serving:
            self.is_wanted = True
            if not self.in_burst:
                self._scheduled = asyncio.get_running_loop().call_soon(self._turn)

    def end_burst(self, *, at_once: bool) -> None:
        """Give the scheduled replicas their turn: now where the burst came alone or `at_once`, else soon. A
        turn under way looks for them itself."""
        scheduled, ready = self._scheduled, self._ready
        if self._serving:
            return
        if ready is None:
            # Callbacks of this round and the next; asyncio's own loop tells them, another one need not.
            ready = self._ready = getattr(asyncio.get_running_loop(), "_ready", _UNTOLD)
        if at_once or len(ready) == (scheduled is not None):
            if scheduled is not None:
                scheduled.cancel()
            self._turn()
        elif scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._turn)

    def follow(self, call: Callable[[], None]) -> None:
        """Make the call right behind the turn under way, never within this one. Without a turn, and for a
        second call, the next round of the event loop makes it. So one turn leads to one other at most."""
        if self._serving and self._follows is None:
            self._follows = call
        else:
            asyncio.get_running_loop().call_soon(call)

    def forget(self, replica: Replica) -> None:
        self.dirty.pop(replica, None)
        self._deadline_of.pop(replica, None)
        self._campaigning.pop(replica, None)
        self._touched.pop(replica, None)

    def take_touched(self) -> list[Replica]:
        """Replicas with a turn since the last call: the logs of all others are as they were."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def _turn(self) -> None:
        is_within_call = self._follows is not None
        self._scheduled = None
        self.is_wanted = False
        self._serving = True
        if self.dirty:
            dirty, self.dirty = self.dirty, {}
            if len(dirty) > MAX_TURNS:
                waiting = iter(dirty)
                dirty = dict.fromkeys(islice(waiting, MAX_TURNS))
                self.dirty = dict.fromkeys(waiting)
            now_ms = self._clock.now_ms()
            for replica in dirty:
                if replica.failure is None:
                    self._give_turn(replica, now_ms)
            self._touched.update(dirty)
        if self._is_outbox_filled:
            self._is_outbox_filled = False
            self._flush_outbox()
        self._serving = False
        if self.dirty:
            # Replicas that were left, or scheduled meanwhile, have their turn in the next round, after its
            # input.
            self._plan_turn()
        if self._follows is not None and not is_within_call:
            try:
                self._follows()
            finally:
                self._follows = None

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
            self._sleep()

    def _push_deadline(self, replica: Replica, deadline_ms: int) -> None:
        self._deadline_of[replica] = deadline_ms
        self._pushes += 1
        heapq.heappush(self._deadlines, (deadline_ms, self._pushes, replica))

    async def run(self) -> None:
        """Serve deadlines until stopped or cancelled. It is callbacks that look at them: a task that sleeps
        and wakes up takes thirty calls more for each."""
        if self.stopping:
            return
        self._over = asyncio.get_running_loop().create_future()
        self._sleep()
        try:
            await self._over
        finally:
            self._over = None
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def stop(self) -> None:
        """`run` ends soon."""
        self.stopping = True
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _sleep(self) -> None:
        """Until the nearest deadline, at the latest."""
        if self._over is None or self._is_awake or not self._deadlines:
            return
        nearest = self._deadlines[0][0]
        if not self._timers or nearest < min(self._timers):
            delay_s = max(0, nearest - self._clock.now_ms()) / 1000
            self._timers[nearest] = asyncio.get_running_loop().call_later(delay_s, self._wake_up, nearest)

    def _wake_up(self, deadline_ms: int) -> None:
        self._timers.pop(deadline_ms, None)
        if self._over is None or self._over.done() or self._is_awake:
            return
        try:
            if self._next_due(self._clock.now_ms()) is None:
                self._sleep()  # the event that it would have looked for, such as an acknowledgement, has come
            else:
                self._is_awake = True
                self._let_input_in(INPUT_ROUNDS_MAX)
        except Exception as bug:  # noqa: BLE001 -- `run` raises it
            self._over.set_exception(bug)

    def _let_input_in(self, rounds: int) -> None:
        """Give sockets their turn before time is looked at: after a stall, heartbeats wait in their
        buffers."""
        loop = asyncio.get_running_loop()
        # Twice: the first round of the event loop polls the sockets, the second runs what they delivered.
        loop.call_soon(loop.call_soon, self._input_was_let_in, rounds - 1, self.inputs)

    def _input_was_let_in(self, rounds: int, seen: int) -> None:
        if rounds and seen != self.inputs:
            self._let_input_in(rounds)
            return
        self._is_awake = False
        if self._over is None or self._over.done():
            return
        try:
            self._serve_deadlines()
            self._sleep()
        except Exception as bug:  # noqa: BLE001 -- `run` raises it
            self._over.set_exception(bug)

    def _next_due(self, now_ms: int) -> Replica | None:
        """The replica of the nearest deadline, if that has come. One whose deadline has moved on gets its
        later place."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline_ms, _, replica = self._deadlines[0]
            is_known = self._deadline_of.get(replica) == deadline_ms
            nearest = replica.deadline() if is_known and replica.failure is None else None
            if nearest is not None and nearest <= now_ms:
                return replica
            heapq.heappop(self._deadlines)
            if is_known:  # else an earlier one took its place, or the replica is closed
                del self._deadline_of[replica]
            if nearest is not None:
                self._push_deadline(replica, nearest)
        return None

    def _serve_deadlines(self) -> None:
        now_ms = self._clock.now_ms()
        if self._campaigning:
            self._campaigning = {
                replica: since_ms
                for replica, since_ms in self._campaigning.items()
                if replica.core.role in CAMPAIGNING and now_ms - since_ms < CAMPAIGN_MS
            }
        while (replica := self._next_due(now_ms)) is not None:
            heapq.heappop(self._deadlines)
            del self._deadline_of[replica]
            deadline_ms = replica.core.deadline()
            is_cores = deadline_ms is not None and deadline_ms <= now_ms
            if is_cores and not self._may_wake(replica, now_ms):
                self._push_deadline(replica, now_ms + CAMPAIGN_PAUSE_MS)
            elif not is_cores or self._wake(replica, now_ms):
                self.schedule(replica)

    def _may_wake(self, replica: Replica, now_ms: int) -> bool:
        """Whether it would not begin an election now, or there is room for one more. Other work of such a
        replica can wait as well."""
        if replica.core.role is Role.LEADER or replica in self._campaigning:
            return True
        if len(self._campaigning) >= MAX_CAMPAIGNS:
            return False
        self._campaigning[replica] = now_ms
        return True

    def _wake(self, replica: Replica, now_ms: int) -> bool:
        """False: it has failed."""
        try:
            replica.core.wake(now_ms)
        except Exception:
            logger.exception("%s: the replica failed at a deadline; this is a bug", replica.group)
            replica.fail("damaged", "an internal error; see the agent's log")
            return False
        return True
