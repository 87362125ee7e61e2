"""Any agent answers any request: forwarding between two agents, and what a broken forward means."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pyarrow as pa
import pytest
from aiohttp import web
from http_fixtures import ARROW, NDJSON, Agent, Answer, arrow_batch, arrow_stream, one_agent, two_agents
from listening import serving

from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.core.forward import FORMER_SESSIONS_MAX, Forwarder
from shoal.agent.interface import Leader
from shoal.errors import ShoalError
from shoal.lookup import Lookup

Pair = tuple[Agent, Agent]
PARTITION = "/v1/topics/t/partitions/0/records"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Two agents; topic t is led by the second, the catalog by the first."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id)
        yield first, second


@pytest.mark.parametrize(
    ("media", "body", "count"),
    [
        ("application/json", b'{"records":[{"key":"k","value":"a"},{"value":"b"}]}', 2),
        (NDJSON, b"1\n2\n3\n", 3),
        (None, b"raw value", 1),
        (None, b"x" * 3_000_000, 1),
        (ARROW, arrow_stream(arrow_batch([b"x", b"y"]), arrow_batch([b"z"])), 3),
    ],
)
@pytest.mark.parametrize("path", [PARTITION, "/v1/topics/t/records"])
async def test_produce_anywhere(pair: Pair, path: str, media: str | None, body: bytes, count: int) -> None:
    """A body of any type sent to the wrong agent is stored by the right one, once."""
    first, second = pair
    direct = await second.post(path, body, media=media)
    answer = await first.post(path, body, media=media)
    assert (direct.status, answer.status) == (200, 200), answer.body
    expected = [{"partition": 0, "base_offset": count, "count": count}]
    assert answer.json == {"count": count, "appended": expected}
    values = second.broker.cluster.values("t")
    assert values[count:] == values[:count]
    assert len(values) == 2 * count


async def test_a_stream_is_forwarded_in_chunks(pair: Pair) -> None:
    """A long NDJSON stream goes through in order, never held whole."""
    first, second = pair
    lines = [b'{"n":%d,"pad":"%s"}' % (number, b"x" * 1000) for number in range(3_000)]

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(lines), 50):
            yield b"\n".join(lines[start : start + 50]) + b"\n"

    answer = await first.request("POST", PARTITION, pieces(), headers={"Content-Type": NDJSON})
    assert answer.json == {"count": 3000, "appended": [{"partition": 0, "base_offset": 0, "count": 3000}]}
    assert second.broker.cluster.values("t") == lines
    assert len(second.broker.cluster.logs["t", 0].batches) > 3


async def test_keys_over_two_leaders(pair: Pair) -> None:
    """A key-routed request is dealt to both agents; all records arrive, each where its key belongs."""
    first, _ = pair
    cluster = first.broker.cluster
    cluster.create("six", 6)
    assert len(set(cluster.leaders.values())) == 2
    records = [{"key": f"user-{number}", "value": str(number)} for number in range(50)]
    answer = await first.post("/v1/topics/six/records", {"records": records})
    assert (answer.status, answer.json["count"]) == (200, 50)
    stored = [value for partition in range(6) for value in cluster.values("six", partition)]
    assert sorted(int(value or b"") for value in stored) == list(range(50))


async def test_forwarded_sequences_are_idempotent(pair: Pair) -> None:
    """Producer headers travel with the request: a repetition through another agent is a duplicate."""
    first, second = pair
    headers = {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "0"}
    direct = await second.post(PARTITION, b"v", **headers)
    again = await first.post(PARTITION, b"v", **headers)
    assert again.json == {**direct.json, "duplicate": True}
    batch = arrow_stream(arrow_batch([b"x"]))
    headers["Shoal_Producer_Sequence"] = "1"
    assert (await first.post(PARTITION, batch, media=ARROW, **headers)).status == 200
    assert (await first.post(PARTITION, batch, media=ARROW, **headers)).json["duplicate"] is True
    headers["Shoal_Producer_Sequence"] = "9"
    (await first.post(PARTITION, b"v", **headers)).problem("sequence-gap")
    assert second.broker.cluster.stored() == 2


async def test_key_routed_sequences_need_only_increase(pair: Pair) -> None:
    """One producer's sequences are spread over partitions and leaders; the partition route stays strict."""
    first, second = pair
    cluster = first.broker.cluster
    cluster.create("spread", 4)
    assert {cluster.leaders["spread", number] for number in range(4)} == {
        first.broker.agent_id,
        second.broker.agent_id,
    }

    async def post(path: str, sequence: int) -> Answer:
        stamp = {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "0"}
        return await first.post(path, b"v", **stamp, Shoal_Producer_Sequence=str(sequence))

    paths = [f"/v1/topics/spread/records?key={key}" for key in "abcdefgh"]
    answers = [await post(path, sequence) for sequence, path in enumerate(paths)]
    assert [answer.status for answer in answers] == [200] * len(paths), [answer.body for answer in answers]
    used = {answer.json["appended"][0]["partition"] for answer in answers}
    assert len(used) >= 3, "the keys are spread"
    assert (await post(paths[-1], len(paths) - 1)).json["duplicate"] is True
    (await post("/v1/topics/t/partitions/0/records", 5)).problem("sequence-gap")


async def test_acks_and_a_shrunk_timeout_travel(pair: Pair) -> None:
    """The leader gets the client's acks and less than the client's timeout."""
    first, second = pair
    assert (await first.post(PARTITION + "?acks=leader&timeout=30s", b"v")).status == 200
    assert second.broker.last_acks == "leader"
    assert 15_000 < second.broker.last_timeout_ms < 30_000
    answer = await first.post(PARTITION + "?acks=none", b"v")
    assert (answer.status, answer.json) == (202, {"count": 1})


async def test_reads_anywhere(pair: Pair) -> None:
    """Every form of read passes through, with its headers; HEAD and waits too."""
    first, second = pair
    await second.post(PARTITION, b"1\n2\n3\n", media=NDJSON)
    for query in ("", "?offset=-1", "?offset=1&limit=1", "?offset=@0"):
        for accept in ("application/json", NDJSON, ARROW):
            direct = await second.get(PARTITION + query, Accept=accept)
            through = await first.get(PARTITION + query, Accept=accept)
            assert through.body == direct.body
            assert through.headers["Content-Type"] == accept
            assert through.headers["Shoal-Next-Offset"] == direct.headers["Shoal-Next-Offset"]
    arrow = await first.get(PARTITION, Accept=ARROW)
    assert pa.ipc.open_stream(io.BytesIO(arrow.body)).read_all().num_rows == 3
    assert (await first.request("HEAD", PARTITION)).status == 200
    waiting = asyncio.create_task(first.get(PARTITION + "?offset=latest&wait=60s&timeout=1s"))
    await asyncio.sleep(0.05)
    await second.post(PARTITION, b"news")
    async with asyncio.timeout(40):
        document = (await waiting).json
    assert [record["value"] for record in document["records"]] == ["news"]


async def test_the_leaders_problems_come_back_unchanged(pair: Pair) -> None:
    """A problem of the leader is the client's answer, with its members."""
    first, second = pair
    problem = (await first.get(PARTITION + "?offset=7")).problem("beyond-end")
    assert problem["high_watermark"] == 0
    second.broker.fail_next = [ShoalError("disk-full", "no room")]
    assert (await first.post(PARTITION, b"v")).problem("disk-full")["detail"] == "no room"
    second.broker.fail_next = [ShoalError("timeout", "slow disk")]
    assert (await first.post(PARTITION, b"v")).problem("timeout")["definite"] is False


async def test_local_reads_stay(pair: Pair) -> None:
    """consistency=local is answered by the agent that was asked."""
    first, second = pair
    await second.post(PARTITION, b"v")
    second.broker.fail_next = [ShoalError("internal", "must not be asked")]
    assert (await first.get(PARTITION + "?offset=0&consistency=local")).json["records"][0]["value"] == "v"


async def _waits_for_what_was_read(behind: Agent, local: str) -> None:
    """Where it has read to is beyond the replica, which learns of it before the time is over."""

    async def learn() -> None:
        await asyncio.sleep(0.1)
        behind.broker.known_end = 2

    learning = asyncio.create_task(learn())
    at_end = local.replace("offset=0", "offset=2").replace("timeout=60ms", "timeout=5s") + "&forward=false"
    answer = await behind.get(at_end, Shoal_High_Watermark="2")
    assert (answer.status, answer.headers["Shoal-High-Watermark"]) == (200, "2")
    await learning
    behind.broker.known_end = 1


async def test_a_reader_never_steps_back(pair: Pair) -> None:
    """A local read at a replica behind its reader waits, then is 421 or asks the leader."""
    first, second = pair
    await second.post(PARTITION, b"1\n", media=NDJSON)
    await second.post(PARTITION, b"2\n", media=NDJSON)
    first.broker.known_end = 1
    local = PARTITION + "?offset=0&consistency=local&timeout=60ms"
    assert (await first.get(local)).headers["Shoal-High-Watermark"] == "1"
    problem = (await first.get(local + "&forward=false", Shoal_High_Watermark="2")).problem("not-leader")
    assert problem["leader_url"] == second.broker.url
    (await first.get(local.replace("offset=0", "offset=2") + "&forward=false")).problem("not-leader")
    assert (await first.get(local, Shoal_High_Watermark="2")).json["high_watermark"] == 2
    await _waits_for_what_was_read(first, local)
    (await first.get(local, Shoal_High_Watermark="x")).problem("bad-request")
    waiting = asyncio.create_task(first.get(local.replace("60ms", "5s"), Shoal_High_Watermark="2"))
    await asyncio.sleep(0.05)
    first.broker.known_end = 2
    assert [record["value"] for record in (await waiting).json["records"]] == ["1", "2"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_forward_false(pair: Pair, method: str) -> None:
    """?forward=false answers 421 with what a routing client needs."""
    first, second = pair
    answer = await first.request(method, PARTITION + "?forward=false", b"v" if method == "POST" else None)
    problem = answer.problem("not-leader")
    assert answer.status == 421
    assert (problem["leader"], problem["leader_url"], problem["term"]) == (
        second.broker.agent_id, second.broker.url, 1,
    )  # fmt: skip
    direct = await second.request(method, PARTITION + "?forward=false", b"v" if method == "POST" else None)
    assert direct.status == 200
    (await first.get("/v1/topics/t/offsets?forward=false")).problem("not-leader")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_second_hop(pair: Pair, method: str) -> None:
    """A forwarded request that is wrong here too is 421, not forwarded again."""
    first, _ = pair
    answer = await first.request(
        method, PARTITION, b"v" if method == "POST" else None, headers={"Shoal-Forwarded-By": "x"}
    )
    answer.problem("not-leader")


async def test_two_agents_that_point_at_each_other(pair: Pair) -> None:
    """Wrong knowledge on both sides ends in time with a definite 503, and stores nothing."""
    first, second = pair

    def wrong(agent: Agent, other: Agent) -> None:
        url, agent_id = other.broker.url, other.broker.agent_id

        async def wait_leader(topic: object, partition: int, timeout_ms: int) -> Leader:
            return Leader(agent_id, url, 1, local=False)

        agent.broker.wait_leader = wait_leader  # type: ignore[method-assign]

    wrong(first, second)
    first.broker.cluster.leaders["t", 0] = None
    started = time.monotonic()
    problem = (await first.post(PARTITION + "?timeout=300ms", b"v")).problem("no-leader")
    assert problem["definite"] is True
    assert 0.2 < time.monotonic() - started < 40
    (await first.get(PARTITION + "?timeout=200ms")).problem("not-leader")
    assert first.broker.cluster.stored() == 0


async def test_waiting_for_a_leader(pair: Pair) -> None:
    """A request outlives an election; without one it is a definite 503 after its timeout."""
    first, second = pair
    cluster = first.broker.cluster
    cluster.leaders["t", 0] = None
    problem = (await first.post(PARTITION + "?timeout=50ms", b"v")).problem("no-leader")
    assert (problem["definite"], problem["retriable"]) == (True, True)
    (await first.get(PARTITION + "?timeout=50ms")).problem("no-leader")
    (await first.get("/v1/topics/t/offsets?timeout=50ms")).problem("no-leader")
    waiting = asyncio.create_task(first.post(PARTITION, b"v"))
    await asyncio.sleep(0.03)
    cluster.leaders["t", 0] = second.broker.agent_id
    assert (await waiting).status == 200
    assert cluster.values("t") == [b"v"]


async def test_leadership_that_moves_here(pair: Pair) -> None:
    """The old leader says 421, then that it is stopping; the next attempt finds this agent itself leading."""
    first, second = pair
    cluster = first.broker.cluster
    refusals = ["not-leader", "stopping"]

    async def losing(*arguments: object, **options: object) -> None:
        code = refusals.pop(0)
        if not refusals:
            cluster.leaders["t", 0] = first.broker.agent_id
        raise ShoalError(code, "just lost it")

    second.broker.append = losing  # type: ignore[assignment]
    assert (await first.post(PARTITION, b"v")).status == 200
    assert refusals == []
    assert cluster.values("t") == [b"v"]


async def unreachable_url() -> str:
    async with serving(lambda reader, writer: writer.close()) as url:
        return url


async def test_a_leader_that_cannot_be_reached(pair: Pair) -> None:
    """Nothing was sent, so nothing happened: 503, definite."""
    first, second = pair
    second.broker.url = await unreachable_url()
    produced = await first.post(PARTITION + "?timeout=200ms", b"v")
    read = await first.get(PARTITION + "?timeout=200ms")
    for answer in (produced, read):
        assert answer.problem("no-leader")["definite"] is True


async def test_a_leader_that_breaks_off(pair: Pair) -> None:
    """The request was sent and no answer came: nobody here knows, so it is not definite; a read changes
    nothing.
    """
    first, second = pair

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    async with serving(hang_up) as second.broker.url:
        problem = (await first.post(PARTITION, b"v")).problem("leadership-lost")
        assert (problem["definite"], problem["status"]) == (False, 504)
        assert (await first.get(PARTITION)).problem("leadership-lost")["definite"] is True


async def test_connections_kept_to_a_host_that_lost_its_power(pair: Pair) -> None:
    """None of them was closed, and each is reset by its next request: a read goes over a new one at once."""
    first, second = pair
    kept: list[asyncio.StreamWriter] = []
    stale: set[asyncio.StreamWriter] = set()
    all_there = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)
        while await reader.readuntil(b"\r\n\r\n"):
            if writer in stale:
                writer.transport.abort()
                return
            if len(kept) == 4:
                all_there.set()
            await all_there.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(reader, writer)
        writer.close()

    async with serving(serve) as second.broker.url:
        answers = await asyncio.gather(*(first.get(PARTITION) for _ in range(4)))
        assert [item.status for item in answers] == [200] * 4
        stale.update(kept)
        for _ in range(2):
            assert (await first.get(PARTITION)).status == 200
    for writer in kept:
        writer.close()


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_a_change_is_sent_once(pair: Pair, method: str) -> None:
    """A change whose connection breaks may have been carried out: it is not sent again behind the client's
    back, where a second deletion would be refused as one of nothing.
    """
    first, second = pair
    seen: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(100))
        writer.close()

    async with serving(hang_up) as first.broker.url:
        problem = (await second.request(method, "/v1/topics/t?timeout=500ms")).problem("leadership-lost")
        assert problem["definite"] is False
        assert len(seen) == 1


async def test_a_leader_that_does_not_answer(pair: Pair) -> None:
    """No answer in time: 504, not definite."""
    first, second = pair

    async def silent(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(2)
        return web.Response()

    runner = web.ServerRunner(web.Server(silent), shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    second.broker.url = f"http://127.0.0.1:{site.port}"
    problem = (await first.post(PARTITION + "?timeout=100ms", b"v")).problem("timeout")
    assert problem["definite"] is False
    await runner.cleanup()


async def test_a_leader_that_fell_silent_is_not_waited_for_once_another_leads(pair: Pair) -> None:
    """It may have happened, and whoever asks again is served at once. A leader that handed over and is still
    heard answers for what it took."""
    first, second = pair
    asked = asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.Response:
        asked.set()
        await asyncio.sleep(0.4)
        return web.json_response({"count": 1, "appended": [{"partition": 0, "base_offset": 7}]})

    runner = web.ServerRunner(web.Server(slow), shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    second.broker.url = f"http://127.0.0.1:{site.port}"
    for unheard, expected in ((set(), 200), ({second.broker.agent_id}, 504)):
        first.broker.cluster.leaders["t", 0] = second.broker.agent_id
        asked.clear()
        asking = asyncio.create_task(first.post(PARTITION + "?timeout=10s", b"v"))
        await asked.wait()
        first.broker.unheard = unheard
        first.broker.cluster.leaders["t", 0] = first.broker.agent_id
        answer = await asking
        assert answer.status == expected
    assert answer.problem("leadership-lost")["definite"] is False
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"count":1,"appended":[{"partition":1,"base_offset":0}]}'),
        (200, b'{"count":-1,"appended":[]}'),
        (200, b"[" * 100_000),
        (503, b"[" * 100_000),
    ],
    ids=["empty", "list", "object", "other partition", "negative", "deep", "deep problem"],
)
async def test_an_answer_that_makes_no_sense(pair: Pair, status: int, body: bytes) -> None:
    """An answer that does not say where the records went is not taken for success."""
    first, second = pair

    async def nonsense(request: web.BaseRequest) -> web.Response:
        await request.read()
        media = "application/json" if status == 200 else "application/problem+json"
        return web.Response(status=status, body=body, content_type=media)

    runner = web.ServerRunner(web.Server(nonsense))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    second.broker.url = f"http://127.0.0.1:{site.port}"
    assert (await first.post(PARTITION, b"v")).problem("leadership-lost")["definite"] is False
    await runner.cleanup()


async def test_topics_are_changed_at_the_catalogs_leader(pair: Pair) -> None:
    """Creation and deletion asked elsewhere are done there; problems come back; auto-creation too."""
    first, second = pair
    assert (await second.request("PUT", "/v1/topics/new", {"partitions": 2})).status == 201
    assert (await second.request("PUT", "/v1/topics/new", {"partitions": 2})).status == 200
    (await second.request("PUT", "/v1/topics/new", {"partitions": 3})).problem("topic-differs")
    assert (await second.request("DELETE", "/v1/topics/new")).status == 204
    (await second.request("DELETE", "/v1/topics/new")).problem("unknown-topic")
    (await second.request("PUT", "/v1/topics/new?forward=false")).problem("not-leader")
    answer = await second.post("/v1/topics/auto/records", b"v")
    assert (answer.status, answer.headers.get("Shoal-Created")) == (200, "true")
    first.broker.cluster.catalog_leader_id = None
    problem = (await second.request("PUT", "/v1/topics/x?timeout=100ms")).problem("no-leader")
    assert problem["definite"] is True


async def test_offsets_are_gathered(pair: Pair) -> None:
    """Both agents give the offsets of partitions led by either."""
    first, _ = pair
    cluster = first.broker.cluster
    cluster.create("six", 6)
    for partition in range(6):
        lines = b"1\n" * (partition + 1)
        await first.post(f"/v1/topics/six/partitions/{partition}/records", lines, media=NDJSON)
    for agent in pair:
        entries = (await agent.get("/v1/topics/six/offsets?at=0")).json["partitions"]
        assert [entry["high_watermark"] for entry in entries] == [1, 2, 3, 4, 5, 6]
        assert [entry["partition"] for entry in entries] == list(range(6))


async def test_a_large_answer_cut_off_on_the_way(pair: Pair) -> None:
    """When the leader breaks off in the middle, the client sees a broken answer, not a short one."""
    first, second = pair

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{half")
        await writer.drain()
        writer.close()

    async with serving(half) as second.broker.url:
        answer = await first.raw(b"GET " + PARTITION.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert len(body) < 100
    assert b"Content-Length: 100" in head or not answer


async def test_after_a_move_new_connections_are_made_and_old_ones_are_bounded(pair: Pair) -> None:
    """What is under way ends as it can; of many moves in a row the oldest connections are cut off."""
    first, second = pair
    forwarder = first.runner.context.forwarder
    assert (await first.post(PARTITION, b"before")).status == 200
    (former,) = forwarder._sessions.values()
    forwarder.renew()
    assert not forwarder._sessions
    assert not former.closed
    assert (await first.post(PARTITION, b"after")).status == 200
    assert former not in forwarder._sessions.values()
    for number in range(FORMER_SESSIONS_MAX + 3):
        forwarder.renew()
        assert (await first.post(PARTITION, str(number).encode())).status == 200
    async with asyncio.timeout(60):
        while len(forwarder._former) > FORMER_SESSIONS_MAX or not former.closed:
            await asyncio.sleep(0.005)
    assert second.broker.cluster.values("t")[:2] == [b"before", b"after"]
    kept = list(forwarder._former)
    await forwarder.close()
    assert all(session.closed for session in kept)
    assert not forwarder._former


async def test_a_leader_whose_name_has_no_address_is_named() -> None:
    """Nothing has happened, and the answer says why."""
    forwarder = Forwarder("me", HttpLimits(), Lookup(lambda _: []))
    with pytest.raises(ShoalError, match=r"the name no\.example has no address") as failed:
        await forwarder.exchange(
            "http://no.example:7070", "POST", "/v1/topics/t/records", passed_on={}, timeout_ms=1_000
        )
    assert (failed.value.code, failed.value.definite) == ("no-leader", True)
    await forwarder.close()


async def test_each_forward_looks_the_name_up_for_its_own_connection() -> None:
    """Not for a kept one; and a name that leads elsewhere is followed at once."""
    asked: list[str] = []

    def resolve(name: str) -> list[str]:
        asked.append(name)
        return ["127.0.0.1"]

    async with one_agent() as agent:
        forwarder = Forwarder("me", HttpLimits(), Lookup(resolve))
        url = f"http://localhost.example:{agent.port}"
        for _ in range(2):
            with pytest.raises(ShoalError, match="none of this agent's names"):
                await forwarder.exchange(url, "GET", "/v1/topics", passed_on={}, timeout_ms=20_000)
        assert asked == ["localhost.example"]
        forwarder.renew()
        with pytest.raises(ShoalError, match="none of this agent's names"):
            await forwarder.exchange(url, "GET", "/v1/topics", passed_on={}, timeout_ms=20_000)
        assert asked == ["localhost.example"] * 2
        await forwarder.close()
