"""One record on its way alone, past event loop, gatherer and pyarrow, for callers that wait for each record.

Law of this file: it moves nothing. A record goes this way only while nothing of its producer is gathered,
taken or in flight; the caller that began it owns the batcher and the counts until it is settled or handed
over. A record that is not acknowledged at once is handed to the ordinary way, ahead of all that came
meanwhile and under the same sequence: stored once, in order. Each change of state is one step, or may be done
again (an interrupt may come between any two).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from shoal.client.http.requests import Call
from shoal.client.http.routes import TopicRoutes, failure_from_problem, json_object
from shoal.client.http.wire import WholeAnswer, request_head
from shoal.client.produce.accumulator import Chunk, Gatherer, HeadersLike, LoneRecord
from shoal.client.produce.batcher import Batcher
from shoal.client.produce.delivery import Piece, Place, ProducerStatistics
from shoal.errors import ClientClosed
from shoal.format.batch import DEFAULT_SCHEMA, schema_message
from shoal.format.hash_ranges import key_hash, partition_for
from shoal.format.plain_values import Text
from shoal.format.row_encoding import encode_rows
from shoal.format.timestamps import Timestamp

RECORD_BYTES_MAX: Final = 64 << 10
"""Of value and key: a larger record takes so long that the ordinary way's costs do not count."""
ANSWER_SECONDS: Final = 0.5
"""An agent that has not answered by then may not lead any more: the ordinary way asks elsewhere."""
TAKEN_OVER_SECONDS: Final = 2.0
"""A record alone that is no further by then was left by an interrupt, or is as good as left."""
PAUSE_SECONDS: Final = 1.0
"""After an agent did not answer well the ordinary way is taken for so long."""
_HEADS_MAX: Final = 1_024  # of partitions and leaders in use; when full they are forgotten, not searched
_SCHEMA: Final = schema_message(DEFAULT_SCHEMA)
_MARK: Final = b"\xff\xff\xff\xff"
_END: Final = _MARK + bytes(4)
_PLACED: Final = re.compile(
    rb'\{"count":1,"appended":\[\{"partition":([0-9]{1,9}),"base_offset":([0-9]{1,18}),"count":1\}\]\}\n?'
)


def row_stream(timestamp_us: int, key: bytes | None, value: bytes | None) -> bytes | None:
    """An Arrow stream of one record without headers, as pyarrow's encoder makes it; None for a record that
    encode_rows does not cover."""
    message = encode_rows((timestamp_us,), (key,), (value,))
    if message is None:
        return None
    size = len(message.metadata).to_bytes(4, "little")
    return b"".join((_SCHEMA, _MARK, size, message.metadata, message.body, _END))


def offset_of(answer: WholeAnswer, partition: int) -> tuple[int, bool] | None:
    """Where the record is and whether it was there before; None if the answer does not say so."""
    if answer.status != 200:
        return None
    plain = _PLACED.fullmatch(answer.body)
    if plain is not None:
        return (int(plain[2]), False) if int(plain[1]) == partition else None
    try:
        document = json.loads(answer.body)
        (appended,) = document["appended"]
        found = appended["base_offset"]
        if type(found) is int and appended["partition"] == partition and document["count"] == 1:
            return found, document.get("duplicate") is True
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return None


def is_definite(answer: WholeAnswer) -> bool:
    """Whether the answer says that nothing was stored."""
    return answer.status >= 300 and failure_from_problem(answer.status, json_object(answer.body)).definite


class LonePath:
    """A producer's lone records, one at a time, from any thread."""

    def __init__(
        self,
        gatherer: Gatherer,
        batcher: Batcher[Piece],
        statistics: ProducerStatistics,
        identities: Mapping[int, str],
        routes: Callable[[], TopicRoutes | None],
        call: Callable[[int, str], Call],
        partition: int | None,
        schemes: tuple[str, ...],
    ) -> None:
        """`identities`: the producer's, by partition. `call`: an append but for its sequence and records.
        `schemes`: of the URLs that may be asked."""
        self._gatherer = gatherer
        self._batcher = batcher
        self._statistics = statistics
        self._identities = identities
        self._routes = routes
        self._call = call
        self._partition = partition
        self._schemes = tuple(scheme for scheme in schemes if scheme.startswith("http"))
        self._spread = 0
        self._heads: dict[tuple[int, str, str], bytes] = {}
        self._paused_until: dict[str, float] = {}

    def begin(
        self,
        value: Text | None,
        key: Text | None,
        *,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
        timeout_seconds: float | None = None,
        deliver_at: Timestamp | None = None,
        delay_seconds: float | None = None,
    ) -> LoneRecord | None:
        """The record, ready to be sent; None when it has to go the ordinary way. The caller settles a
        record (`settle`) or hands it over (`hand_over`), and minds `timeout_seconds`."""
        if any(option is not None for option in (headers, timestamp, deliver_at, delay_seconds)):
            return None
        if isinstance(value, str):
            value = _encoded(value)
        if isinstance(key, str):
            key = _encoded(key)
        if not (value is None or isinstance(value, bytes)) or not (key is None or isinstance(key, bytes)):
            return None
        if len(value or b"") + len(key or b"") > RECORD_BYTES_MAX:
            return None
        lone = LoneRecord(value, key, time.time_ns() // 1_000, time.monotonic())
        if not self._gatherer.begin_lone(lone):
            return None
        if self._prepare(lone, partition):
            if self._gatherer.lone is not lone:  # taken over, and the sequence is perhaps another's
                lone.request = b""
            return lone
        if self._gatherer.end_lone(lone):
            return None
        return lone

    def _prepare(self, lone: LoneRecord, partition: int | None) -> bool:
        owner = self._owner(lone.key, partition)
        if owner is None:
            return False
        number, url = owner
        sequence = self._batcher.next_sequence(number)
        identity = self._identities.get(number)
        body = row_stream(lone.timestamp_us, lone.key, lone.value)
        if sequence is None or identity is None or body is None:
            return False
        head = self._heads.get((number, url, identity)) or self._head(number, url, identity)
        lone.partition, lone.url, lone.sequence = number, url, sequence
        lone.request = b"%bContent-Length: %d\r\nShoal-Producer-Sequence: %d\r\n\r\n%b" % (
            head, len(body), sequence, body,
        )  # fmt: skip
        done = self._statistics
        lone.counts = done.records_sent, done.records_acknowledged, done.requests, done.duplicates
        return True

    def _owner(self, key: bytes | None, partition: int | None) -> tuple[int, str] | None:
        """The record's partition and its leader's URL; None where the ordinary way knows more."""
        routes = self._routes()
        if routes is None or not routes.partitions:
            return None
        number = self._partition if partition is None else partition
        if number is None:
            index = 0
            if len(routes.partitions) > 1 and key is None:
                self._spread = index = (self._spread + 1) % len(routes.partitions)
            elif len(routes.partitions) > 1:
                assert key is not None
                index = partition_for(key_hash(key), routes.ranges)
            number = routes.partitions[index].partition
        route = routes.get(number)
        url = None if route is None else route.leader_url
        if url is None or not url.startswith(self._schemes):
            return None
        paused_until = self._paused_until.get(url)
        if paused_until is not None and time.monotonic() < paused_until:
            return None
        return number, url

    def _head(self, partition: int, url: str, identity: str) -> bytes:
        """All of a request's head that stays the same."""
        call = self._call(partition, identity)
        head = request_head("POST", url, call.path, {**call.params, "forward": "false"}, call.headers)[:-2]
        if len(self._heads) >= _HEADS_MAX:
            self._heads.clear()
        self._heads[partition, url, identity] = head
        return head

    def settle(self, lone: LoneRecord, answer: WholeAnswer | None) -> Place | None:
        """The record's place; None when it was handed to the ordinary way, where the delivery of its chunk
        will say. `answer`: None if there was none."""
        if answer is not None:
            if answer.status == 401:
                self._heads.clear()  # a token that was exchanged goes into new ones
            found = offset_of(answer, lone.partition)
            if found is None:
                lone.doubt = lone.doubt and not is_definite(answer)
            else:
                lone.duplicate = found[1]
                lone.base_offset = found[0]  # last: from now on it is acknowledged
        if lone.base_offset is None:
            if lone.request:
                if len(self._paused_until) >= _HEADS_MAX:
                    self._paused_until.clear()
                self._paused_until[lone.url] = time.monotonic() + PAUSE_SECONDS
            self.hand_over(lone)
            return None
        if self._end(lone):
            return Place(lone.partition, lone.base_offset)
        return None  # it took so long that it was taken over

    def _account(self, lone: LoneRecord) -> None:
        """An acknowledged one is counted; a second time changes nothing."""
        self._batcher.skip(lone.partition, lone.sequence)
        sent, acknowledged, requests, duplicates = lone.counts
        done = self._statistics
        done.records_sent, done.records_acknowledged = sent + 1, acknowledged + 1
        done.requests, done.duplicates = requests + 1, duplicates + lone.duplicate

    def hand_over(self, lone: LoneRecord) -> None:
        """To the ordinary way, unless it is acknowledged or was taken over before."""
        if lone.base_offset is not None:
            self._end(lone)
            return
        try:
            self._gatherer.hand_over(lone, lambda: _chunk(lone))
        except RuntimeError:  # the event loop that would send it has ended
            assert lone.chunk is not None
            lone.chunk.delivery.fail(ClientClosed("the client was closed meanwhile"))

    def take_over(self) -> float | None:
        """Hand over a record that its caller has left: it may have been sent, or may still be. Otherwise the
        seconds until then; None when no record is on its way."""
        lone = self._gatherer.lone
        if lone is None:
            return None
        left_seconds = lone.begun_seconds + TAKEN_OVER_SECONDS - time.monotonic()
        if left_seconds > 0:
            return left_seconds
        lone.doubt = True
        self.hand_over(lone)
        return None

    def _end(self, lone: LoneRecord) -> bool:
        try:
            return self._gatherer.end_lone(lone, self._account)
        except RuntimeError:  # the event loop that would hear of it has ended
            return True


def _encoded(text: str) -> bytes | str:
    """A text's UTF-8; itself when it has none, which is for the ordinary way to say."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text


def _chunk(lone: LoneRecord) -> Chunk:
    extra = (None, lone.timestamp_us, lone.partition if lone.partition >= 0 else None, None)
    size_bytes = len(lone.value or b"") + len(lone.key or b"")
    return Chunk(
        0,  # due at once
        lone.timestamp_us,
        [lone.value],
        [lone.key],
        {0: extra},
        size_bytes,
        sealed=True,
        repeats=lone.doubt,
    )
