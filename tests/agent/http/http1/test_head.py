"""Heads are read when they have one meaning, and left to another parser when they may have two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_requests import SMUGGLED

from shoal.agent.http.admission.limits import WHOLE_HEAD_BYTES_MAX
from shoal.agent.http.http1.head import RequestHead, may_become_head, read_head

PLAIN = b"POST /a?b=%20 HTTP/1.1\r\nHost: x\r\nX-A:\t b c \t\r\nX-B:\r\n"


@pytest.mark.parametrize(
    ("lines", "body_bytes"),
    [
        (b"", 0),
        (b"Content-Length: 12\r\n", 12),
        (b"content-length:0\r\n", 0),
        (b"CONNECTION:\tKeep-Alive \r\nContent-Length: 1\r\n", 1),
        (b"Connection:\r\n", 0),
        (b"X-Content-Length: 5\r\n", 0),
        (b"X-A: \xfc\r\nX-A: again\r\n", 0),
        (b"Expect: 100-continue\r\nContent-Length: 3\r\n", 3),
    ],
)
def test_where_a_request_ends(lines: bytes, body_bytes: int) -> None:
    """By its length; without one it has no body."""
    assert read_head(PLAIN + lines + b"\r\n") == RequestHead(body_bytes)


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 1\r\nContent-Length: 1",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked",
        b"Content-Length: 1, 1",
        b"Content-Length: +1",
        b"Content-Length: -1",
        b"Content-Length: 1x",
        b"Content-Length: ",
        b"Content-Length: 1234567890123456",
        b"Content-Length : 1",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding:\x0bchunked",
        b"Connection: close",
        b"Connection: keep-alive, close",
        b"Connection: close\r\nConnection: keep-alive",
        b"Upgrade: shoal-peer/1",
        b"Host: y",
        b" folded",
        b"\tfolded",
        b"no colon",
        b": no name",
        b"X A: b",
        b"X-A: b\x00c",
        b"X-A: b\rc",
        b"X-A: b\nc",
        b"X-A: \x7f",
        b"X-" + b"A" * 64 + b": b",
    ],
)
def test_heads_that_are_not_read(line: bytes) -> None:
    """Those that two parsers could understand in two ways, and those whose connection changes behind them."""
    assert read_head(PLAIN + line + b"\r\n\r\n") is None


@pytest.mark.parametrize(
    "line",
    [
        b"POST /a HTTP/1.0", b"POST /a HTTP/2.0", b"POST /a HTTP/1.1 ", b"POST  /a HTTP/1.1", b"POST /a",
        b"POST a HTTP/1.1", b"POST http://x/ HTTP/1.1", b"OPTIONS * HTTP/1.1", b"CONNECT x:1 HTTP/1.1",
        b"post /a HTTP/1.1", b"POST /a#b HTTP/1.1", b"POST /\xfc HTTP/1.1", b"POST /a\tb HTTP/1.1", b"",
    ],
)  # fmt: skip
def test_request_lines_that_are_not_read(line: bytes) -> None:
    """Nor any other form of target, version or blank."""
    assert read_head(line + b"\r\nHost: x\r\n\r\n") is None


def test_no_smuggled_head_is_read() -> None:
    """Of the requests that every parser has to refuse, none has a head that says where it ends."""
    large = {"many headers", "long header", "long request line"}  # clean, and refused for their size
    for name, data in SMUGGLED.items():
        head = data[: data.index(b"\r\n\r\n") + 4]
        assert (read_head(head) is None) != (name in large), name


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", PLAIN, b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"]),
)
def test_any_bytes(data: bytes, start: bytes) -> None:
    """Any bytes are a head or none, and every beginning of a head may become one."""
    whole = start + data + b"\r\n\r\n"
    head = read_head(whole)
    if head is None:
        return
    assert whole.index(b"\r\n\r\n") == len(whole) - 4, "a head ends with the first empty line"
    assert head.body_bytes >= 0
    assert all(may_become_head(whole[:cut]) for cut in range(len(whole) - 1))


def test_what_cannot_become_a_head() -> None:
    """Another protocol, another version, control bytes: seen in the bytes that are here; and too many."""
    for begun in (
        b"",
        b"G",
        b"GET",
        b"GET ",
        b"GET /",
        b"GET / HTT",
        b"GET / HTTP/1.1\r",
        PLAIN,
        PLAIN + b"X",
    ):
        assert may_become_head(begun), begun
    for begun in (
        b"\x16\x03",
        b"\r\n",
        b"get",
        b"GET x",
        b"GET /\x00",
        b"GET / ICE",
        PLAIN + b"\x00",
        b"A" * 25,
    ):
        assert not may_become_head(begun), begun
    assert may_become_head(PLAIN + b"a" * (WHOLE_HEAD_BYTES_MAX - 1 - len(PLAIN)))
    assert not may_become_head(PLAIN + b"a" * (WHOLE_HEAD_BYTES_MAX - len(PLAIN)))
