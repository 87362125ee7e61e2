"""GET /v1/topics/{topic}/partitions/{p}/records: where to begin, who answers, in which form."""

from __future__ import annotations

from aiohttp import web

from shoal.agent.http.admission.answer_room import AnswerReservation
from shoal.agent.http.api import operations as api
from shoal.agent.http.api.media import ARROW_TYPE, EVENT_STREAM, JSON_TYPE
from shoal.agent.http.core.context import Call, Deadline, partition_number
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import forward_target, topic_path
from shoal.agent.http.core.leader import at_leader, partition_of
from shoal.agent.http.core.parameters import choice, integer, invalid, is_number
from shoal.agent.http.fetch.anywhere import WantedRows, read_here
from shoal.agent.http.fetch.cursors import OFFSET_MAX
from shoal.agent.http.fetch.follow import follow
from shoal.agent.http.fetch.partition_stream import PartitionSource, resumed_offset
from shoal.agent.http.fetch.render import Rendering, choose_rendering, render_arrow, render_text
from shoal.agent.interface import Admit, Fetch, Json, Leader, Topic
from shoal.errors import ShoalError, shown
from shoal.format.timestamps import parse_time

HIGH_WATERMARK = "Shoal-High-Watermark"
# Between two looks at a replica that is behind its reader: a follower learns of commits within a heartbeat.
BEHIND_PAUSE_S = 0.02
PASSED_ON_HEADERS = ("Accept", "Shoal-High-Watermark")
OFFSET_FORMS = "N, -N, earliest, latest or @TIME is wanted"


async def records(call: Call) -> web.StreamResponse:
    """Answer here if this agent may; else from the leader, as it comes."""
    rendering = choose_rendering(call)
    topic = call.context.broker.topic(call.arguments[0])
    partition = partition_number(call.arguments[1])
    request = ReadRequest(call, topic, partition, rendering)
    if rendering.media == EVENT_STREAM:
        return await request.stream()
    deadline = Deadline(call.timeout_ms())

    async def there(leader: Leader) -> web.StreamResponse:
        return await request.relay(leader.url, deadline)

    led = partition_of(call, topic, partition)
    return await at_leader(call, led, request.answer_here, there, deadline, reads=True)


ROUTES = (Route(api.READ_PARTITION, records),)


class ReadRequest:
    """One read, its parameters checked; may be answered more than once while leadership moves."""

    __slots__ = ("_call", "_deadline", "_from", "_rendering", "_seen", "_topic", "_wanted")

    def __init__(self, call: Call, topic: Topic, partition: int, rendering: Rendering) -> None:
        query, limits = call.query, call.context.limits
        self._call = call
        self._topic = topic
        self._rendering = rendering
        self._from = query.get("offset", "latest" if rendering.media == EVENT_STREAM else "earliest")
        check_offset_form(self._from)
        max_bytes = integer(query, "max_bytes", limits.default_read_bytes, low=1, high=limits.read_bytes)
        max_bytes = call.affordable(max_bytes)
        local = choice(query, "consistency", "leader", ("leader", "local")) == "local"
        self._wanted = WantedRows(partition, 0, max_bytes, rendering.limit, call.wait_ms(), local)
        seen = seen_watermark(call)
        self._seen = seen if local else 0
        self._deadline = Deadline(call.timeout_ms())  # of all attempts together

    async def answer_here(self) -> web.StreamResponse:
        """Read from this agent's log and render; ShoalError not-leader when it may not."""
        wanted = self._wanted._replace(offset=await self._offset())
        holding = self._call.holding()
        try:
            if self._rendering.media != ARROW_TYPE:
                return await self._answer_text(wanted, holding)
            fetch = await self._fetch(wanted, holding.await_room)
            with self._call.context.gate.place():
                if fetch.pieces is None:
                    await holding.add(sum(map(len, fetch.frames)))
                return await render_arrow(self._call, self._rendering, fetch, wanted.offset)
        finally:
            holding.release()

    async def relay(self, url: str, deadline: Deadline) -> web.StreamResponse:
        """Its leader's answer as it comes, of as many bytes as the asker's quota leaves."""
        call, wanted = self._call, self._wanted
        query = call.query
        if call.asker.meter is not None:
            query = {**query, "max_bytes": str(wanted.max_bytes)}
        remaining_ms = deadline.remaining_ms()
        path = topic_path(self._topic.name, "partitions", wanted.partition, "records")
        return await call.waiting(
            call.context.forwarder.relay(
                call.request,
                url,
                forward_target(path, query, remaining_ms),
                headers={name: call.headers[name] for name in PASSED_ON_HEADERS if name in call.headers},
                passed_on=call.asker.passed_on,
                timeout_ms=remaining_ms + call.wait_ms(),
                spend=call.spend,
            )
        )

    async def _answer_text(self, wanted: WantedRows, holding: AnswerReservation) -> web.StreamResponse:
        call = self._call
        fetch, selected = await call.context.selector.fetch_and_select(
            lambda admit: self._fetch(wanted, admit), wanted.portion, holding, call.timeout_ms()
        )
        with call.context.gate.place():
            return await render_text(call, self._rendering, self._topic, wanted.partition, fetch, selected)

    async def stream(self) -> web.StreamResponse:
        """Follow the partition from here, wherever it is led."""
        resumed = resumed_offset(self._call)
        offset = await self._offset_anywhere() if resumed is None else resumed
        wanted = self._wanted._replace(offset=offset)
        source = PartitionSource(self._call, self._topic, wanted, self._rendering.value_as)
        return await self._call.streaming(follow(self._call, source))

    async def _offset_anywhere(self) -> int:
        """Where to begin, asked from the leader if it lies elsewhere."""
        if is_number(self._from):
            return int(self._from)
        call, topic, partition = self._call, self._topic, self._wanted.partition
        timeout_ms = call.timeout_ms()

        async def there(leader: Leader) -> int:
            asked = self._from if self._from.startswith("@") else "latest"
            query = {"offset": asked, "limit": "1", "max_bytes": "1"}
            reply = await call.context.forwarder.exchange(
                leader.url,
                "GET",
                topic_path(topic.name, "partitions", partition, "records"),
                passed_on=call.asker.passed_on,
                timeout_ms=timeout_ms,
                query=query,
                headers={"Accept": JSON_TYPE},
            )
            return offset_in(reply.document(), self._from)

        led = partition_of(call, topic, partition)
        return await at_leader(call, led, self._offset, there, Deadline(timeout_ms), reads=True)

    async def _fetch(self, wanted: WantedRows, admit: Admit) -> Fetch:
        call = self._call
        while True:
            try:
                fetch = await call.waiting(read_here(call, self._topic, wanted, admit))
            except ShoalError as error:
                # Even the offset lies beyond what this replica knows: it may be about to learn more.
                if not self._seen or not is_behind(error) or not await self._deadline.pause(BEHIND_PAUSE_S):
                    raise
                continue
            if fetch.high_watermark >= self._seen:
                return fetch
            if not await self._deadline.pause(BEHIND_PAUSE_S):
                raise self._behind(fetch.high_watermark)

    def _behind(self, high_watermark: int) -> ShoalError:
        leader = self._call.context.broker.leader(self._topic, self._wanted.partition)
        return ShoalError(
            "not-leader",
            f"this replica knows the log up to {high_watermark}, the client up to {self._seen}",
            leader=None if leader is None else leader.agent_id,
            leader_url=None if leader is None else leader.url,
            term=0 if leader is None else leader.term,
        )

    async def _offset(self) -> int:
        """Where to begin, as a number."""
        broker, partition = self._call.context.broker, self._wanted.partition
        text = self._from
        if is_number(text):
            return int(text)
        if text.startswith("@"):
            return int(await broker.offset_at_time(self._topic, partition, time_of(text)))
        offsets = await broker.offsets(self._topic, partition)
        return offset_within(text, offsets.log_start_offset, offsets.high_watermark)


def offset_in(answer: Json, text: str) -> int:
    """The offset that `text` means, in the leader's answer to a read from there (@TIME) or from the end."""
    try:
        start, end = int(answer["log_start_offset"]), int(answer["high_watermark"])
        if text.startswith("@"):
            records = answer["records"]
            return int(records[0]["offset"] if records else answer["next_offset"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ShoalError("leadership-lost", f"the leader's answer is not understood: {error!r}") from None
    return offset_within(text, start, end)


def offset_within(text: str, log_start_offset: int, high_watermark: int) -> int:
    """The offset that earliest, latest or -N means."""
    if text == "earliest":
        return log_start_offset
    if text == "latest":
        return high_watermark
    return max(log_start_offset, high_watermark - int(text[1:]))


def is_behind(error: ShoalError) -> bool:
    """A local read asked for more than the replica knows; others refuse because there is no replica here."""
    return error.code in ("not-leader", "no-leader") and "high_watermark" in error.extra


def seen_watermark(call: Call) -> int:
    """The high watermark that the client has seen; a local read never shows it an older log (safety 23)."""
    text = call.headers.get(HIGH_WATERMARK)
    if text is None:
        return 0
    if not is_number(text) or int(text) > OFFSET_MAX:
        raise ShoalError("bad-request", f"{HIGH_WATERMARK} {shown(text)} is not an offset")
    return int(text)


def check_offset_form(text: str) -> None:
    """ShoalError bad-request for what is no offset, before anything is asked."""
    if text.startswith("@"):
        time_of(text)
    elif text not in ("earliest", "latest") and not is_number(text.removeprefix("-")):
        raise invalid("offset", text, OFFSET_FORMS)


def time_of(text: str) -> int:
    """Microseconds since the epoch of @TIME."""
    try:
        return parse_time(text[1:])
    except ShoalError as error:
        raise invalid("offset", text, error.detail) from None
