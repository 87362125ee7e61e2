"""The loop: one turn for everything that arrived, deadlines after input."""

import asyncio
from collections.abc import Callable
from typing import Any

from shoal.agent.host.scheduler import CAMPAIGN_MS, CAMPAIGN_PAUSE_MS, MAX_CAMPAIGNS, MAX_TURNS, Scheduler
from shoal.replication.roles.transitions import Role


class VirtualClock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def now_us(self) -> int:
        return self.ms * 1_000


class FakeCore:
    """Only a deadline, and what happened to it."""

    def __init__(self) -> None:
        self.deadline_ms: int | None = None
        self.woken: list[int] = []
        self.broken = False
        self.role = Role.FOLLOWER

    def deadline(self) -> int | None:
        return self.deadline_ms

    def wake(self, now_ms: int) -> None:
        if self.broken:
            raise RuntimeError("a bug")
        self.woken.append(now_ms)
        self.deadline_ms = None
        if self.role is Role.FOLLOWER:
            self.role = Role.PRE_CANDIDATE


class FakeReplica:
    """What the scheduler knows of a replica."""

    group = "g"

    def __init__(self) -> None:
        self.failure: tuple[str, str] | None = None
        self.core = FakeCore()
        self.turns: list[int] = []
        self.broken = False
        self.say: Callable[[], None] = lambda: None
        """Puts something into the outbox in each turn."""

    def deadline(self) -> int | None:
        return self.core.deadline()

    def turn(self, now_ms: int) -> None:
        self.turns.append(now_ms)
        self.say()
        if self.broken:
            raise RuntimeError("a bug")

    def fail(self, code: str, reason: str) -> None:
        self.failure = (code, reason)


def make() -> tuple[Scheduler, VirtualClock, list[int], Any]:
    """A scheduler, its clock, the flushes of its outbox, and a replica that says something in each turn."""
    clock = VirtualClock()
    flushes: list[int] = []
    turns, replica = Scheduler(clock, lambda: flushes.append(clock.ms)), FakeReplica()
    replica.say = turns.schedule_flush
    return turns, clock, flushes, replica


def serve(turns: Scheduler) -> None:
    """As the disk does once it has handed out what it had."""
    with turns.completions:
        pass


async def test_a_turn_served_at_once_does_not_come_again() -> None:
    """What the disk's completions have scheduled is served in their own round, and only there."""
    turns, _, flushes, replica = make()
    with turns.completions:
        pass
    assert not flushes
    with turns.completions:
        turns.schedule(replica)
    assert (len(replica.turns), len(flushes)) == (1, 1)
    await asyncio.sleep(0)
    assert (len(replica.turns), len(flushes)) == (1, 1)
    turns.schedule(replica)
    await asyncio.sleep(0)
    assert (len(replica.turns), len(flushes)) == (2, 2)


async def test_who_was_touched_is_told_once() -> None:
    """Everybody who has had a turn since the question before, but who is closed by now."""
    turns, _, _, replica = make()
    other: Any = FakeReplica()
    closed: Any = FakeReplica()
    for item in (replica, other, closed):
        turns.schedule(item)
    serve(turns)
    turns.forget(closed)
    assert turns.take_touched() == [replica, other]
    assert not turns.take_touched()
    turns.schedule(other)
    serve(turns)
    assert turns.take_touched() == [other]


async def test_one_turn_for_all_that_was_scheduled() -> None:
    """However often it is scheduled in one round, a replica gets one ready, and the outbox goes out once."""
    turns, _, flushes, replica = make()
    other: Any = FakeReplica()
    for _ in range(5):
        turns.schedule(replica)
        turns.schedule(other)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(replica.turns), len(other.turns), len(flushes)) == (1, 1, 1)


async def test_a_bug_in_one_replica_stops_only_that_one() -> None:
    """It fails; the others keep their turns."""
    turns, _, _, replica = make()
    other: Any = FakeReplica()
    replica.broken = True
    turns.schedule(replica)
    turns.schedule(other)
    await asyncio.sleep(0)
    assert replica.failure is not None
    assert other.failure is None
    assert len(other.turns) == 1


async def test_input_that_has_arrived_is_stepped_before_a_deadline() -> None:
    """After a stall the heartbeat in the socket moves the deadline: nobody campaigns (safety 26)."""
    turns, clock, _, replica = make()
    replica.core.deadline_ms = 1_001
    turns.schedule(replica)
    await asyncio.sleep(0)
    clock.ms = 5_000  # the process was stopped for four seconds

    def heartbeat_arrives() -> None:
        turns.inputs += 1
        replica.core.deadline_ms = 6_000
        turns.schedule(replica)

    async def socket() -> None:
        for _ in range(2):  # until the deadline is looked at
            await asyncio.sleep(0)
        heartbeat_arrives()

    reading = asyncio.create_task(socket())
    running = asyncio.create_task(turns.run())
    await reading
    for _ in range(20):
        await asyncio.sleep(0)
    assert replica.core.woken == []
    clock.ms = 6_000
    turns.schedule(replica)
    async with asyncio.timeout(40):
        while not replica.core.woken:
            await asyncio.sleep(0.001)
    assert replica.core.woken == [6_000]
    turns.stop()
    await running


async def test_a_deadline_that_has_moved_on_costs_no_turn() -> None:
    """The earlier look finds nothing due. The replica keeps its later deadline and has no turn until then."""
    turns, clock, _, replica = make()
    replica.core.deadline_ms = 1_005
    turns.schedule(replica)
    serve(turns)
    replica.core.deadline_ms = 1_050
    turns.schedule(replica)
    serve(turns)
    assert len(replica.turns) == 2
    running = asyncio.create_task(turns.run())
    for now_ms, expected in ((1_005, []), (1_049, []), (1_050, [1_050])):
        clock.ms = now_ms
        turns._wake_up(clock.ms)
        for _ in range(20):
            await asyncio.sleep(0)
        assert replica.core.woken == expected
        assert len(replica.turns) == 2 + len(expected)
    turns.stop()
    await running


async def test_a_flood_of_input_does_not_stop_time() -> None:
    """Deadlines wait for input a bounded number of rounds only."""
    turns, clock, _, replica = make()
    replica.core.deadline_ms = 1_001
    turns.schedule(replica)
    await asyncio.sleep(0)
    clock.ms = 2_000
    running = asyncio.create_task(turns.run())
    for _ in range(100):
        turns.inputs += 1
        await asyncio.sleep(0)
    assert replica.core.woken == [2_000]
    turns.stop()
    await running


async def test_a_bug_at_a_deadline_stops_only_that_replica() -> None:
    """Time goes on for the others."""
    turns, clock, _, replica = make()
    other: Any = FakeReplica()
    replica.core.broken = True
    for item in (replica, other):
        item.core.deadline_ms = 1_001
        turns.schedule(item)
    await asyncio.sleep(0)
    clock.ms = 2_000
    running = asyncio.create_task(turns.run())
    for _ in range(30):
        await asyncio.sleep(0)
    assert replica.failure is not None
    assert other.core.woken == [2_000]
    turns.stop()
    await running


async def test_a_closed_replica_is_forgotten() -> None:
    """Its deadline may come; nothing happens."""
    turns, clock, _, replica = make()
    replica.core.deadline_ms = 1_001
    turns.schedule(replica)
    await asyncio.sleep(0)
    turns.schedule(replica)
    turns.forget(replica)
    clock.ms = 9_000
    running = asyncio.create_task(turns.run())
    for _ in range(30):
        await asyncio.sleep(0)
    assert replica.core.woken == []
    assert len(replica.turns) == 1
    turns.stop()
    await running


async def test_a_thousand_elections_do_not_begin_at_once() -> None:
    """So many at a time; who is decided makes room for the next, and whoever cannot win after a while. A
    leader's heartbeat never waits for them."""
    turns, clock, _, _ = make()
    followers: list[Any] = [FakeReplica() for _ in range(3 * MAX_CAMPAIGNS)]
    leader: Any = FakeReplica()
    leader.core.role = Role.LEADER
    for replica in [*followers, leader]:
        replica.core.deadline_ms = clock.ms + 5
        turns.schedule(replica)
    serve(turns)

    async def begun_after(pause_ms: int) -> int:
        clock.ms += pause_ms
        turns._wake_up(clock.ms)
        for _ in range(30):  # rounds of the event loop, not time: a machine may stand still at any moment
            await asyncio.sleep(0)
        return sum(bool(replica.core.woken) for replica in followers)

    serving = asyncio.create_task(turns.run())
    await asyncio.sleep(0)
    assert await begun_after(5) == MAX_CAMPAIGNS
    assert leader.core.woken == [1_005]
    assert await begun_after(CAMPAIGN_PAUSE_MS) == MAX_CAMPAIGNS
    for replica in followers:
        if replica.core.woken:
            replica.core.role = Role.LEADER
    assert await begun_after(CAMPAIGN_PAUSE_MS) == 2 * MAX_CAMPAIGNS
    assert await begun_after(CAMPAIGN_PAUSE_MS) == 2 * MAX_CAMPAIGNS
    assert await begun_after(CAMPAIGN_MS) == 3 * MAX_CAMPAIGNS
    turns.stop()
    await serving


async def test_what_came_alone_has_its_turn_in_the_very_call() -> None:
    """A burst around a lone input: one turn, at once, and none is planned for the next round."""
    turns, _, flushes, replica = make()
    with turns.burst:
        turns.schedule(replica)
        assert not flushes
    assert (len(replica.turns), len(flushes)) == (1, 1)
    await asyncio.sleep(0)
    assert (len(replica.turns), len(flushes)) == (1, 1)
    with turns.burst:
        pass
    assert len(replica.turns) == 1, "nobody was scheduled"


async def test_what_came_together_shares_a_turn_in_the_next_round() -> None:
    """A burst that ends while more input waits in this round of the loop gets one turn with it."""
    turns, _, flushes, replica = make()

    def take_input() -> None:
        with turns.burst:
            turns.schedule(replica)

    loop = asyncio.get_running_loop()
    loop.call_soon(take_input)
    loop.call_soon(take_input)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(replica.turns), len(flushes)) == (1, 1)


async def test_a_message_of_a_turn_leaves_with_it_and_plans_no_other() -> None:
    """The outbox is let out at the end of the turn that filled it; who is scheduled meanwhile has another."""
    turns, clock, flushes, replica = make()
    begun: list[int] = []

    def turn(now_ms: int) -> None:
        begun.append(now_ms)
        turns.schedule_flush()
        if len(begun) == 1:
            turns.schedule(replica)

    replica.turn = turn
    turns.schedule(replica)
    serve(turns)
    assert len(begun) == 1
    await asyncio.sleep(0)
    assert len(begun) == 2
    count = len(flushes)
    clock.ms += 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(flushes) == count == 2


async def test_an_outbox_with_nothing_in_it_stays_shut() -> None:
    """Most turns have nothing to say. One that says something from outside gets a turn for that alone."""
    turns, _, flushes, _ = make()
    silent: Any = FakeReplica()
    turns.schedule(silent)
    serve(turns)
    assert (len(silent.turns), len(flushes)) == (1, 0)
    turns.schedule_flush()
    turns.schedule_flush()
    await asyncio.sleep(0)
    assert (len(silent.turns), len(flushes)) == (1, 1)
    turns.schedule(silent)
    await asyncio.sleep(0)
    assert (len(silent.turns), len(flushes)) == (2, 1)


async def test_a_thousand_turns_at_once_let_others_in_between() -> None:
    """What is read and written between two rounds of the event loop does not wait for all of them; and each
    has one turn, in the order in which they asked."""
    turns, _, flushes, _ = make()
    order: list[int] = []
    replicas: list[Any] = [FakeReplica() for _ in range(3 * MAX_TURNS + 1)]

    def turn(number: int) -> None:
        order.append(number)
        turns.schedule_flush()

    for number, replica in enumerate(replicas):
        replica.turn = lambda _, number=number: turn(number)
        turns.schedule(replica)
    seen = []
    for _ in range(5):
        await asyncio.sleep(0)
        seen.append(len(order))
    assert seen == [MAX_TURNS, 2 * MAX_TURNS, 3 * MAX_TURNS, 3 * MAX_TURNS + 1, 3 * MAX_TURNS + 1]
    assert order == sorted(order)
    assert len(flushes) == 4
    assert turns.take_touched() == replicas


async def test_a_call_follows_its_turn_and_leads_to_one_other() -> None:
    """Never within the question. A turn that the call leads to gets its own call in the next round: replicas
    that go on for ever have two turns in each."""
    turns, _, flushes, replica = make()
    calls: list[tuple[int, int]] = []

    def turn(now_ms: int) -> None:
        replica.turns.append(now_ms)
        turns.schedule_flush()
        turns.follow(ended)

    def ended() -> None:
        calls.append((len(replica.turns), len(flushes)))
        with turns.completions:
            turns.schedule(replica)

    replica.turn = turn
    with turns.burst:
        turns.schedule(replica)
    assert calls == [(1, 1)]
    assert len(replica.turns) == 2
    await asyncio.sleep(0)
    assert calls == [(1, 1), (2, 2), (3, 3)]
    assert len(replica.turns) == 4


async def test_a_call_outside_of_turns_comes_in_the_next_round() -> None:
    """As asyncio makes it."""
    turns, _, _, _ = make()
    calls: list[str] = []
    turns.follow(lambda: calls.append("made"))
    assert not calls
    await asyncio.sleep(0)
    assert calls == ["made"]
