"""The blocking subscription: a plain loop, errors, threads, and Ctrl-C at any moment."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from blocking_fixtures import QUICK, Interrupts, wait_until
from fake_cluster import FakeCluster
from fake_group_routes import FakeGroups

from shoal import Client, ClientClosed, GroupMessage, Subscription
from shoal.client.loop_thread import LoopThread
from shoal.client.produce.producer import batch_of


class ThreadedGroups(FakeGroups):
    """Looked at on the thread of its agents, which change a group between any two steps of another."""

    def __init__(self, cluster: FakeCluster, thread: LoopThread) -> None:
        super().__init__(cluster)
        self._thread = thread

    def undone(self) -> int:
        """Messages that are not acknowledged."""
        return self._thread.call(
            lambda: sum(
                desk.group.spans.undone + desk.feed.count(desk.group.next, desk.append_us)
                for desk in self.desks("t", "g")
            )
        )

    def in_flight(self) -> int:
        """Messages that somebody holds."""
        return self._thread.call(
            lambda: sum(desk.leader.describe(0, 0).in_flight for desk in self.desks("t", "g"))
        )


@pytest.fixture
def groups() -> Iterator[ThreadedGroups]:
    """Three agents with groups, on a thread of their own."""
    thread = LoopThread("fake-cluster")

    async def start() -> ThreadedGroups:
        cluster = FakeCluster(3)
        groups = ThreadedGroups(cluster, thread)
        await cluster.__aenter__()
        return groups

    groups = thread.run(start())
    try:
        yield groups
    finally:
        thread.run(groups.cluster.__aexit__(None, None, None))
        thread.close()


@pytest.fixture
def client(groups: ThreadedGroups) -> Iterator[Client]:
    """A client that knows one of them."""
    with Client(groups.cluster.urls[0], QUICK) as client:
        yield client


def fill(groups: ThreadedGroups, messages: int, partitions: int = 1) -> None:
    topic = groups.cluster.create("t", partitions)
    for number, log in enumerate(topic.partitions):
        log.append([batch_of([b"%06d" % (number * 1_000 + row) for row in range(messages)])], None)


def test_a_plain_loop_acknowledges_what_it_has_worked_on(groups: ThreadedGroups, client: Client) -> None:
    """Each message once, in order; what was not begun is free again when the client goes."""
    fill(groups, 250)
    seen = []
    for message in client.subscribe("t", group="g"):
        seen.append(message.offset)
        if len(seen) == 230:
            message.ack()
            break
    assert seen == list(range(230))
    client.close()
    assert groups.undone() == 20
    assert groups.in_flight() == 0


def test_an_error_in_a_plain_loop_gives_its_message_back(groups: ThreadedGroups, client: Client) -> None:
    """It comes again as its second attempt; those before it are done."""
    fill(groups, 10)
    groups.create("t", "g", retry={"first": "0s", "most": "0s"})

    def work() -> None:
        for message in client.subscribe("t", group="g"):
            if message.offset == 3:
                raise ValueError("no such account")

    with pytest.raises(ValueError, match="account"):
        work()
    wait_until(lambda: len(groups.said("nack")) == 1)
    seen = []
    with client.subscribe("t", group="g") as subscription:
        for message in subscription:
            seen.append((message.offset, message.attempt))
            if len(seen) == 7:
                message.ack()
                break
    assert sorted(seen) == [(3, 2), *((offset, 1) for offset in range(4, 10))]
    assert groups.undone() == 0


def test_a_block_gives_the_error_as_the_reason(groups: ThreadedGroups, client: Client) -> None:
    """A message that was settled before it is left alone."""
    fill(groups, 2)

    def work(offset: int) -> None:
        with client.subscribe("t", group="g", batch=1) as subscription:
            for message in subscription:
                if message.offset == offset:
                    message.ack()
                raise ValueError(f"at {message.offset}")

    with pytest.raises(ValueError, match="at 0"):
        work(0)
    with pytest.raises(ValueError, match="at 1"):
        work(0)
    assert [body["reason"] for body in groups.said("nack")] == ["ValueError: at 1"]


def test_an_interrupt_of_a_body_counts_and_delays_nothing(groups: ThreadedGroups, client: Client) -> None:
    """Ctrl-C in the midst of a message: it comes again at once, as its next attempt."""
    fill(groups, 2)

    def work() -> None:
        with client.subscribe("t", group="g") as subscription:
            for _ in subscription:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [(body["delay"], body["reason"]) for body in groups.said("nack")] == [("0ms", "KeyboardInterrupt")]
    with client.subscribe("t", group="g") as subscription:
        message = subscription.poll(60)
        assert message is not None
        assert (message.offset, message.attempt) == (0, 2)
        message.ack()


def test_threads_settle_what_another_has_taken(groups: ThreadedGroups, client: Client) -> None:
    """A pool of workers, whatever the order in which they are done."""
    fill(groups, 300, partitions=2)
    seen: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def work(message: GroupMessage) -> None:
        with message, lock:
            seen[message.partition, message.offset] += 1

    with client.subscribe("t", group="g") as subscription, ThreadPoolExecutor(4) as pool:
        taken = 0
        while taken < 600:
            message = subscription.poll(60)
            assert message is not None
            pool.submit(work, message)
            taken += 1
        pool.shutdown(wait=True)
        subscription.flush(60)
        assert groups.undone() == 0
    assert len(seen) == 600
    assert set(seen.values()) == {1}
    assert subscription.poll(0) is None
    with pytest.raises(ClientClosed):
        message.extend(1)


def test_a_subscription_that_is_dropped_gives_back_what_it_holds(
    groups: ThreadedGroups, client: Client
) -> None:
    """Also where garbage is collected on the client's own thread, as after an error of `poll`."""
    fill(groups, 5)
    dropped = [client.subscribe("t", group="g")]
    assert dropped[0].poll(timeout_seconds=30) is not None
    client._thread.call(dropped.clear)
    wait_until(lambda: bool(groups.said("release")))


def test_batches_of_arrow(groups: ThreadedGroups, client: Client) -> None:
    """As messages: asking for the next acks those before."""
    fill(groups, 25)
    taken: list[int] = []
    with client.subscribe("t", group="g", batch=10) as subscription:
        for batch in subscription.batches():
            taken += batch.offsets
            if len(taken) == 25:
                batch.ack()
                break
    assert taken == list(range(25))
    assert groups.undone() == 0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_lose_no_message(groups: ThreadedGroups, client: Client) -> None:
    """A loop that is interrupted a hundred times: a message that its body did not see is not acknowledged."""
    fill(groups, 400)
    groups.create("t", "g", retry={"first": "0s", "most": "0s"}, max_attempts=None)
    seen: set[int] = set()
    interrupted = 0
    subscription = client.subscribe("t", group="g", batch=20)
    with Interrupts(0.004, __file__) as interrupts:
        deadline = time.monotonic() + 200
        while len(seen) < 400 or groups.undone():
            assert time.monotonic() < deadline, f"{groups.undone()} are left, {subscription}"
            got: list[int] = []
            try:
                if interrupted < 100:
                    interrupts.arm()
                while (seen | set(got)) != set(range(400)) and time.monotonic() < deadline:
                    _take_one(subscription, got, alone=interrupted >= 100)
                interrupts.disarm()
                subscription.flush(60)
            except KeyboardInterrupt:
                interrupted += 1
            seen.update(got)
            acknowledged = 400 - groups.undone()
            assert acknowledged <= len(seen)
    assert seen == set(range(400))


def _take_one(subscription: Subscription, got: list[int], *, alone: bool) -> None:
    """By the loop; once nobody interrupts it any more, for a second at most."""
    for message in [subscription.poll(1)] if alone else subscription:
        if message is not None:
            got.append(message.offset)
            message.ack()
        return
