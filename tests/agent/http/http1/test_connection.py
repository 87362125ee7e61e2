"""One connection's states: the same requests in any pieces, one at a time, never a byte to two parsers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from odd_requests import GET, ORDINARY, POST, SMUGGLED

from shoal.agent.http.admission.limits import WHOLE_HEAD_BYTES_MAX
from shoal.agent.http.http1.connection import ConnectionState, HttpConnection, Received
from shoal.agent.http.http1.head import RequestHead, read_head

ALL = {**ORDINARY, **SMUGGLED}
Event = tuple[RequestHead | None, bytes]
NOTHING = memoryview(b"")


class Reader:
    """Answers each request as soon as it is whole. Events: each request with its bytes; None with all that
    was handed over."""

    def __init__(self, *, early: bool = False) -> None:
        self.http: HttpConnection[RequestHead] = HttpConnection(read_head)
        self.events: list[Event] = []
        self._early = early

    def take(self, data: bytes) -> None:
        self._add(self.http.receive(memoryview(data)))
        while True:
            if self.http.state is ConnectionState.ANSWERING:
                self.http.answered()
            if self.http.state is not ConnectionState.IDLE:
                break
            received = self.http.receive(NOTHING)
            if received is None:
                break
            self._add(received)

    def _add(self, received: Received[RequestHead] | None) -> None:
        if received is None:
            return
        head, read, body = received
        if read is not None:
            self.events.append((read, head + bytes(body)))
            if self._early and self.http.state is ConnectionState.BODY:
                self.http.answered()
        elif self.http.state is ConnectionState.HANDED_OVER and (
            not self.events or self.events[-1][0] is not None
        ):
            self.events.append((None, bytes(body)))
        else:
            request, data = self.events.pop()
            self.events.append((request, data + bytes(body)))


def events(pieces: Iterable[bytes], *, early: bool = False) -> tuple[list[Event], bytes, ConnectionState]:
    """Also: what is held in the end, and the state."""
    reader = Reader(early=early)
    for piece in pieces:
        reader.take(piece)
    return reader.events, bytes(reader.http.held), reader.http.state


def cut_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]


def is_clean(data: bytes) -> bool:
    found, _, state = events([data])
    return state is ConnectionState.IDLE and len(found) == 1


CLEAN = sorted(name for name, data in ORDINARY.items() if is_clean(data))


def test_most_ordinary_requests_are_clean() -> None:
    """The rest is handed over, or is the last."""
    assert len(CLEAN) >= 25
    assert {"plain", "expected", "get", "head", "latin header"} <= set(CLEAN)
    for name in ("last", "chunked", "an upgrade nobody knows"):
        assert events([ORDINARY[name]])[2] is ConnectionState.HANDED_OVER


@given(st.lists(st.sampled_from(CLEAN), min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=20))
def test_clean_requests_in_any_pieces(names: list[str], cuts: list[int]) -> None:
    """Each is one event of exactly its bytes, answered early or late."""
    data = b"".join(ORDINARY[name] for name in names)
    for early in (False, True):
        found, held, state = events(cut_at(data, cuts), early=early)
        assert [event[1] for event in found] == [ORDINARY[name] for name in names]
        assert (held, state) == (b"", ConnectionState.IDLE)


@given(
    st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=4),
    st.lists(st.integers(0, 20_000), max_size=9),
)
def test_any_requests_in_any_pieces(names: list[str], cuts: list[int]) -> None:
    """What is read, what is handed over and what is dropped does not depend on the pieces. A connection that
    is handed over loses no byte."""
    data = b"".join(ALL[name] for name in names)
    whole, cut = events([data]), events(cut_at(data, cuts))
    assert cut == whole
    if whole[2] is ConnectionState.HANDED_OVER:
        assert b"".join(event[1] for event in whole[0]) == data


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=9))
@example(b"\r\n\r\n", [1, 2, 3])
def test_any_bytes_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    """No byte is lost: it was given out, or it is held."""
    for start in (
        b"",
        GET,
        POST + b"Transfer-Encoding: chunked\r\n\r\n",
        POST + b"Content-Length: 9\r\n\r\n",
    ):
        found, held, state = events(cut_at(start + data, cuts))
        assert state is not ConnectionState.CLOSING
        assert b"".join(event[1] for event in found) + held == start + data


def test_one_request_at_a_time() -> None:
    """What comes behind a request is held until its answer has left."""
    http: HttpConnection[RequestHead] = HttpConnection(read_head)
    first = http.receive(memoryview(GET + b"\r\n" + GET))
    assert first is not None
    assert (first[0], http.state) == (GET + b"\r\n", ConnectionState.ANSWERING)
    assert http.receive(memoryview(b"\r\nG")) is None
    http.answered()
    second = http.receive(NOTHING)
    assert second is not None
    assert (second[0], http.held) == (GET + b"\r\n", b"G")


@pytest.mark.parametrize("early", [False, True])
def test_the_last_answer(early: bool) -> None:
    """Nothing follows an answer that says close; the rest of its request's body is still given out."""
    http: HttpConnection[RequestHead] = HttpConnection(read_head)
    assert http.receive(memoryview(POST + b"Content-Length: 2\r\n\r\n")) is not None
    if early:
        http.answered(keep_alive=False)
    received = http.receive(memoryview(b"ab" + GET + b"\r\n"))
    assert received is not None
    assert received[2] == b"ab"
    if not early:
        http.answered(keep_alive=False)
    assert (http.state, http.held, http.receive(NOTHING)) == (ConnectionState.CLOSING, b"", None)
    assert http.receive(memoryview(GET + b"\r\n")) is None


def test_a_body_that_is_received_elsewhere() -> None:
    """Its bytes are counted, and the next request begins behind them."""
    http: HttpConnection[RequestHead] = HttpConnection(read_head)
    http.begin(RequestHead(10))
    http.body_came(4)
    assert http.state is ConnectionState.BODY
    http.body_came(6)
    assert http.state is ConnectionState.ANSWERING
    http.answered()
    assert http.receive(memoryview(GET + b"\r\n")) is not None


def test_heads_are_bounded() -> None:
    """A head that has not ended within the bound is another parser's, and no more of it is held."""
    reader = Reader()
    most = 0
    for _ in range(3 * WHOLE_HEAD_BYTES_MAX):
        reader.take((GET + b"X-A: ")[:1] if not reader.http.held and not reader.events else b"A")
        most = max(most, len(reader.http.held))
    assert reader.http.state is ConnectionState.HANDED_OVER
    assert most <= WHOLE_HEAD_BYTES_MAX


def test_a_stopped_connection_takes_nothing() -> None:
    """Nor does it keep what it held."""
    http: HttpConnection[RequestHead] = HttpConnection(read_head)
    http.receive(memoryview(GET))
    http.close()
    assert (http.receive(memoryview(b"\r\n")), http.held, http.state) == (None, b"", ConnectionState.CLOSING)
