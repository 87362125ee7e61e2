"""A user's program with mistakes, which test_mypy.py and test_pyright.py check and nobody runs.

After `# wrong:` stand mypy's code and pyright's rule for the mistake of that line. All other lines are right.
"""

import asyncio

import shoal
from shoal import AsyncClient, Client, Consumer, Delivery, Producer, Record, RetryPolicy


def send(client: Client) -> int | None:
    with client.producer("orders", acks="leader", compression="zstd") as producer:
        taken: Producer = producer
        delivery: Delivery = taken.send(b"one", key="ann", headers={"trace": "af31"})
        appended = delivery.result(timeout_seconds=5)
        first: int = appended[0].base_offset  # wrong: assignment reportAssignmentType
        taken.send(7)  # wrong: arg-type reportArgumentType
        taken.send(b"one", keys="ann")  # wrong: call-arg reportCallIssue
        client.producer("orders", acks="most")  # wrong: arg-type reportArgumentType
        print(delivery.offset)  # wrong: attr-defined reportAttributeAccessIssue
    client.send_json("orders", {"item": 7}, "ann", timeout_seconds="5")  # wrong: arg-type reportArgumentType
    client.create_topic("orders", partition=3)  # wrong: call-arg reportCallIssue
    created, document = client.create_topic("orders", partitions=3, retention={"age": "7d"})
    print(created, document["name"], [topic["name"] for topic in client.topics()])
    end: int = client.offsets("orders")[0].high_watermark
    late: str = client.fetch("orders", 0, end).base_offset  # wrong: assignment reportAssignmentType
    client.fetch("orders", 0, late)  # wrong: arg-type reportArgumentType
    client.trim("orders", 0, offset=end)  # wrong: call-arg reportCallIssue
    client.flush(timeout_seconds="5")  # wrong: arg-type reportArgumentType
    return delivery.place(first).offset


def read(client: Client) -> list[str]:
    consumer: Consumer = client.consumer("orders", start="earliest", follow=False)
    texts: list[str] = []
    lag: dict[int, int] = consumer.lag()
    consumer.seek(0, lag[0])
    consumer.seek(partition="0", offset=lag[0])  # wrong: arg-type reportArgumentType
    consumer.seek_to_time("noon")  # wrong: arg-type reportArgumentType
    client.consumer("orders", start=2.5)  # wrong: arg-type reportArgumentType
    client.consumer("orders", latest=True)  # wrong: call-arg reportCallIssue
    for record in consumer:
        kept: Record = record
        texts.append(kept.value.decode())  # wrong: union-attr reportOptionalMemberAccess
        if kept.value is not None:
            texts.append(kept.value.decode())
        kept.offset = 1  # wrong: misc reportAttributeAccessIssue
        late: str = kept.timestamp  # wrong: assignment reportAssignmentType
        texts.append(late)
    return texts


def policy() -> RetryPolicy:
    patient = RetryPolicy(total_ms=120_000)
    patient.total_ms = 1  # wrong: misc reportAttributeAccessIssue
    return RetryPolicy(total_seconds=120)  # wrong: call-arg reportCallIssue


async def at_once() -> None:
    async with AsyncClient("http://127.0.0.1:7070") as client:
        delivery = await client.send("orders", "text")
        await delivery
        await client.send("orders", value=1.5)  # wrong: arg-type reportArgumentType
        async for record in client.consumer("orders"):
            print(record.key, record.vaule)  # wrong: attr-defined reportAttributeAccessIssue
        for _ in client.consumer("orders"):  # wrong: attr-defined reportGeneralTypeIssues
            print(shoal.Reader)  # wrong: attr-defined reportAttributeAccessIssue


if __name__ == "__main__":
    with Client(["http://127.0.0.1:7070"]) as blocking:
        print(send(blocking), read(blocking), policy())
    asyncio.run(at_once())
