"""Subscriptions before a made-up cluster whose groups are led by the product's own code."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest
from fake_cluster import FakeCluster, reset_after_storing, reset_before_storing
from fake_group_routes import FakeGroups

from shoal import AsyncClient, ClientClosed, ClientConfig, ClientError, GroupMessage, RetryPolicy, ShoalError
from shoal.client.produce.producer import batch_of

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three agents, with groups."""
    fake = FakeCluster(3)
    fake.groups = FakeGroups(fake)  # type: ignore[attr-defined]
    async with fake:
        yield fake


@pytest.fixture
def groups(cluster: FakeCluster) -> FakeGroups:
    """The cluster's groups."""
    found: FakeGroups = cluster.groups  # type: ignore[attr-defined]
    return found


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[AsyncClient]:
    """A client that knows one agent."""
    async with AsyncClient(cluster.urls[:1], QUICK) as client:
        yield client


def fill(cluster: FakeCluster, messages: int, partitions: int = 1, key: bytes | None = None) -> None:
    """Topic t: partition p holds the values p*1000 ..."""
    topic = cluster.topics.get("t") or cluster.create("t", partitions)
    for number, log in enumerate(topic.partitions):
        first = number * 1_000 + log.end
        values = [b"%06d" % (first + row) for row in range(messages)]
        log.append([batch_of(values, None if key is None else [key] * messages)], None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def undone(groups: FakeGroups, group: str = "g") -> int:
    return sum(desk.leader.describe(desk.now_ms, desk.append_us).lag for desk in groups.desks("t", group))


async def test_each_message_comes_once_and_is_acknowledged_as_the_next_is_asked_for(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """A whole answer is acknowledged by one receipt, in the receive that follows it."""
    fill(cluster, 250)
    seen: list[bytes | None] = []
    async with client.subscribe("t", group="g") as subscription:
        async for message in subscription:
            seen.append(message.value)
            assert (message.topic, message.partition, message.offset, message.attempt) == (
                "t", 0, len(seen) - 1, 1,
            )  # fmt: skip
            if len(seen) == 250:
                message.ack()
                break
    assert seen == [b"%06d" % number for number in range(250)]
    assert undone(groups) == 0
    assert all(len(body["ack"]) <= 2 for body in groups.said("receive") if "ack" in body)
    assert subscription.late == 0


async def test_a_message_whose_body_raised_comes_again(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """`async with` sees the error: its kind and words are the reason, and the attempt counts."""
    fill(cluster, 3)
    groups.create("t", "g", retry={"first": "0s", "most": "0s"})

    async def fail() -> None:
        async with client.subscribe("t", group="g", batch=1) as subscription:
            async for message in subscription:
                raise KeyError(f"amount of {message.offset}")

    with pytest.raises(KeyError):
        await fail()
    assert [body["reason"] for body in groups.said("nack")] == ["KeyError: 'amount of 0'"]
    seen = []
    async with client.subscribe("t", group="g") as subscription:
        async for message in subscription:
            seen.append((message.offset, message.attempt))
            if len(seen) == 3:
                message.ack()
                break
    assert sorted(seen) == [(0, 2), (1, 1), (2, 1)]
    assert undone(groups) == 0


@pytest.mark.parametrize("partition", [2, -1])
async def test_a_partition_that_is_none_is_refused_at_once(
    cluster: FakeCluster, client: AsyncClient, partition: int
) -> None:
    """It has no leader, for which a minute would be waited."""
    fill(cluster, 1, partitions=2)
    with pytest.raises(ShoalError, match=rf"t has no partition {partition}: it has 2 partitions"):
        await client.subscribe("t", group="g", partition=partition).open()


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_name_that_no_path_holds_is_no_consumers(client: AsyncClient, name: str) -> None:
    """A path with two dots is another one: that of the group itself. An unset variable gives the empty one:
    it is no missing one."""
    with pytest.raises(ShoalError, match="is no consumer's name: use 1 to 128 printable"):
        client.subscribe("t", group="g", consumer=name)
    assert client.subscribe("t", group="g", consumer=None).consumer.count("-") >= 2


async def test_a_subscription_that_nobody_holds_ends_with_its_client(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ack is said, and no task of it is collected as garbage in the midst."""
    fill(cluster, 1)
    async for message in client.subscribe("t", group="g"):
        message.ack()
        break
    del message  # it knows its subscription
    await until(lambda: undone(groups) == 0)
    for _ in range(30):
        await asyncio.sleep(0.01)
        gc.collect()
    assert "destroyed" not in caplog.text
    (left,) = client._open_subscriptions
    await client.close()
    assert not left.is_open


async def test_a_loop_that_is_left_outside_of_a_block_gives_its_message_back(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Nobody can tell an error from a `break` there: the message comes again, the unbegun ones at once."""
    fill(cluster, 5)
    groups.create("t", "g", retry={"first": "0s", "most": "0s"})
    subscription = client.subscribe("t", group="g")
    messages = subscription.__aiter__()
    assert (await anext(messages)).offset == 0
    await messages.aclose()  # type: ignore[attr-defined]
    await subscription.close()
    assert [body["reason"] for body in groups.said("nack")] == ["its loop was left"]
    assert len(groups.said("release")) == 1
    assert groups.desks("t", "g")[0].leader.describe(0, 0).in_flight == 0
    with pytest.raises(ClientClosed):
        await subscription.open()


async def test_messages_are_settled_one_by_one_in_any_order(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """With `poll` the caller says what became of each; saying it twice is refused."""
    fill(cluster, 5)
    groups.create("t", "g", retry={"first": "1h", "most": "1h"})
    async with client.subscribe("t", group="g") as subscription:
        found = [await subscription.poll(60) for _ in range(5)]
        assert all(found)
        messages = [message for message in found if message is not None]
        messages[3].ack()
        messages[1].nack(delay_seconds=7_200, reason="no such account")
        messages[0].reject()
        messages[4].release()
        with messages[2]:
            pass
        with pytest.raises(ClientError, match=r"offset 3, attempt 1> was settled by ack\(\) before"):
            messages[3].nack()
        await subscription.flush(60)
        numbers = groups.desks("t", "g")[0].leader.describe(0, 0)
        assert (numbers.in_flight, numbers.dying, numbers.delayed) == (0, 1, 2)
        again = await subscription.poll(60)
        assert again is not None
        assert (again.offset, again.attempt) == (4, 1)
        again.ack()
    assert groups.said("nack")[0]["delay"] == "7200000ms"
    assert undone(groups) == 2  # one is on its way to the dead letters, one waits


@pytest.mark.parametrize("fault", [reset_after_storing, reset_before_storing])
async def test_a_receive_that_broke_off_is_repeated_and_brings_the_same_messages(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient, fault: object
) -> None:
    """Nothing waits for the end of a lease: each message comes once, as its first attempt."""
    fill(cluster, 40)
    seen: list[tuple[int, int]] = []
    async with client.subscribe("t", group="g", batch=10) as subscription:
        async for message in subscription:
            seen.append((message.offset, message.attempt))
            if len(seen) == 40:
                message.ack()
                break
            if len(seen) % 10 == 9:
                groups.receive_faults.append(fault)  # type: ignore[arg-type]
    assert seen == [(number, 1) for number in range(40)]
    bodies = groups.said("receive")
    assert any(body.get("retry") for body in bodies)
    assert not any(body.get("retry") for body in bodies[:1])
    assert undone(groups) == 0
    assert subscription.late == 0


async def test_acks_that_broke_off_leave_again(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """An ack whose answer was lost is said once more; that it was used before is no complaint."""
    fill(cluster, 3)
    async with client.subscribe("t", group="g") as subscription:
        message = await subscription.poll(60)
        assert message is not None
        groups.act_faults.append(reset_after_storing)
        message.ack()
        await subscription.flush(60)
        assert subscription.late == 0
        assert undone(groups) == 2


async def test_a_lone_ack_leaves_without_a_receive(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Nobody asks for the next message: the ack of the last leaves by itself, within its time."""
    fill(cluster, 10)
    async with client.subscribe("t", group="g") as subscription:
        message = await subscription.poll(60)
        assert message is not None
        message.ack()
        await until(lambda: undone(groups) == 9)
        assert [len(body["receipts"]) for body in groups.said("ack")] == [1]


async def test_a_lease_is_extended_as_long_as_the_body_runs(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Another consumer waits for two visibilities and gets what was not begun, but not what is worked on."""
    fill(cluster, 3)
    groups.create("t", "g", visibility="3s")
    async with client.subscribe("t", group="g") as subscription:
        message = await subscription.poll(60)
        assert message is not None
        async with client.subscribe("t", group="g", consumer="other") as other:
            begun = asyncio.get_running_loop().time()
            found = [await other.poll(60) for _ in range(2)]
            assert [one.offset for one in found if one is not None] == [1, 2]
            assert [one.attempt for one in found if one is not None] == [1, 1]  # released, not expired
            await asyncio.sleep(max(0.0, begun + 7.5 - asyncio.get_running_loop().time()))
            for one in found:
                assert one is not None
                one.ack()
        message.ack()
    assert len(groups.said("extend")) >= 3
    assert undone(groups) == 0
    assert (subscription.late, other.late) == (0, 0)


async def test_what_is_not_begun_is_dropped_when_the_lease_is_lost(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Somebody else was given the messages (an operator sought): none of the rest is handed out, and an ack
    of the one in hand is counted as late."""
    fill(cluster, 3)
    groups.create("t", "g", visibility="1s")
    async with client.subscribe("t", group="g") as subscription:
        message = await subscription.poll(60)
        assert message is not None
        await client._cluster.anywhere(_seek("latest"))
        await until(lambda: subscription._ledger.ready == 0)
        message.ack()
        await subscription.flush(60)
        assert subscription.late == 1
        assert await subscription.poll(0.2) is None


def _seek(to: str) -> object:
    from shoal.client.http.requests import Call

    return Call("POST", "/v1/topics/t/groups/g/seek", body=b'{"to": "%b"}' % to.encode())


async def test_an_exclusive_consumer_keeps_the_order_over_a_nack(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """What was not begun behind a nacked message is given back: it comes after it."""
    fill(cluster, 6)
    groups.create("t", "g", mode="exclusive", retry={"first": "0s", "most": "0s"})
    seen = []
    async with client.subscribe("t", group="g", mode="exclusive", consumer="a") as subscription:
        async for message in subscription:
            seen.append((message.offset, message.attempt))
            if seen[-1] == (2, 1):
                message.nack()
            if message.offset == 5:
                message.ack()
                break
    assert seen == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (5, 1)]
    assert undone(groups) == 0
    assert groups.said("present")
    assert len(groups.said("leave")) == 1


async def test_keys_keep_their_order_over_a_nack(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Messages of the same key behind a nacked one come after it; those of other keys stay."""
    topic = cluster.create("t")
    keys = [b"a", b"b", b"a", b"b", b"a"]
    topic.partitions[0].append([batch_of([b"%d" % n for n in range(5)], keys)], None)
    groups.create("t", "g", mode="key-ordered", retry={"first": "0s", "most": "0s"})
    seen = []
    async with client.subscribe("t", group="g") as subscription:
        async for message in subscription:
            seen.append(message.offset)
            if seen == [0]:
                message.nack()
            if len(seen) == 6:
                message.ack()
                break
    assert [offset for offset in seen if offset % 2 == 0] == [0, 0, 2, 4]
    assert [offset for offset in seen if offset % 2 == 1] == [1, 3]
    assert undone(groups) == 0


async def test_three_exclusive_consumers_and_a_name_that_is_taken(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """One owner has a partition; another process of the same name is told so."""
    fill(cluster, 1)
    groups.create("t", "g", mode="exclusive", session="1s")
    async with client.subscribe("t", group="g", consumer="a") as first:
        found = await first.poll(60)
        assert found is not None
        quick = ClientConfig(retry=RetryPolicy(total_ms=100))
        async with AsyncClient(cluster.urls, quick) as other:
            with pytest.raises(ShoalError) as refused:
                await other.subscribe("t", group="g", consumer="a").poll(60)
            assert refused.value.code == "consumer-in-use"
        found.ack()


async def test_a_fail_over_leaves_no_message_behind(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Agents are killed in turn under two consumers of three partitions: every message is done, once."""
    fill(cluster, 60, partitions=3)
    seen: list[tuple[int, int]] = []

    async def consume() -> None:
        async with client.subscribe("t", group="g", batch=7) as subscription:
            while len(seen) < 180:
                message = await subscription.poll(0.2)
                if message is None:
                    continue
                with message:
                    seen.append((message.partition, message.offset))

    async def kill() -> None:
        for number in (0, 1):
            await until(lambda number=number: len(seen) > 50 * (number + 1))  # type: ignore[misc]
            await cluster.kill(number)

    await asyncio.gather(consume(), consume(), kill())
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(60)]
    assert undone(groups) == 0


async def test_batches_are_arrow_and_are_settled_as_a_whole(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Asking for the next acks; an error inside `with batch:` nacks all of it."""
    fill(cluster, 10)
    groups.create("t", "g", retry={"first": "0s", "most": "0s"})
    taken = []
    async with client.subscribe("t", group="g", batch=4) as subscription:
        async for batch in subscription.batches():
            taken.append((batch.offsets, sorted(set(batch.attempts))))
            assert batch.batch.column("value").to_pylist() == [b"%06d" % offset for offset in batch.offsets]
            if len(taken) == 1:
                with pytest.raises(ValueError, match="bad"), batch:
                    raise ValueError("bad")
            if sum(len(offsets) for offsets, _ in taken) == 14:
                batch.ack()
                break
    assert taken[0] == ([0, 1, 2, 3], [1])
    assert sorted(offset for offsets, _ in taken[1:] for offset in offsets) == list(range(10))
    assert undone(groups) == 0


async def test_closing_while_a_receive_waits_releases_what_it_would_have_brought(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """The message was given to a receive whose answer nobody reads: it is free again at once."""
    fill(cluster, 1)

    async def never_answered(request: object, proceed: Callable[[], object]) -> object:
        await proceed()  # type: ignore[misc]
        await asyncio.sleep(60)
        raise AssertionError("the connection is cut before")

    groups.receive_faults.append(never_answered)  # type: ignore[arg-type]
    subscription = client.subscribe("t", group="g")
    polling = asyncio.create_task(subscription.poll(60))
    await until(lambda: bool(groups.groups) and undone(groups) == 1 and _in_flight(groups) == 1)
    await subscription.close()
    assert await polling is None
    assert _in_flight(groups) == 0


def _in_flight(groups: FakeGroups) -> int:
    return sum(desk.leader.describe(desk.now_ms, desk.append_us).in_flight for desk in groups.desks("t", "g"))


async def test_one_partition_may_be_chosen(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Its messages alone come, also where the group is new."""
    fill(cluster, 3, partitions=3)
    async with client.subscribe("t", group="g", partition=1) as subscription:
        found = [await subscription.poll(60) for _ in range(3)]
        for message in found:
            assert message is not None
            message.ack()
    assert [(message.partition, message.offset) for message in found if message] == [(1, 0), (1, 1), (1, 2)]
    assert undone(groups) == 6


async def test_slips_are_named(cluster: FakeCluster, groups: FakeGroups, client: AsyncClient) -> None:
    """A group without a name, a topic that is not there, a mode that the group has not."""
    fill(cluster, 1)
    with pytest.raises(ShoalError, match="no group name"):
        client.subscribe("t", group="")
    with pytest.raises(ShoalError, match="there is no topic 'absent'"):
        await client.subscribe("absent", group="g").poll(60)
    groups.create("t", "g")
    with pytest.raises(ShoalError) as refused:
        await client.subscribe("t", group="g", mode="exclusive").poll(60)
    assert refused.value.code == "group-differs"
    cluster.auto_create_topics = False
    with pytest.raises(ShoalError) as unknown:
        await client.subscribe("t", group="nobody").poll(60)
    assert unknown.value.code == "unknown-group"


async def test_a_message_is_a_record_with_an_attempt(
    cluster: FakeCluster, groups: FakeGroups, client: AsyncClient
) -> None:
    """Fields, JSON, words for people; and no message is carried to another process."""
    topic = cluster.create("t")
    topic.partitions[0].append([batch_of([b'{"a": 1}'], [b"k"])], None)
    async with client.subscribe("t", group="g") as subscription:
        message = await subscription.poll(60)
        assert isinstance(message, GroupMessage)
        assert (message.key, message.json(), message.headers, message.deliver_at_us) == (
            b"k",
            {"a": 1},
            (),
            None,
        )
        assert message.record.offset == 0
        assert repr(message) == "<GroupMessage t/0 offset 0, attempt 1>"
        assert "1 in hand" in repr(subscription)
        with pytest.raises(ClientError):
            message.nack(delay_seconds=-1)
        with pytest.raises(ClientError):
            message.extend(0)
        message.extend(60)
        await until(lambda: any(body["visibility"] == "60000ms" for body in groups.said("extend")))
        message.ack()
