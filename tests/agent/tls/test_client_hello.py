"""Greetings of clients: those that OpenSSL sends, whole and in pieces, and any bytes."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.tls import client_hello
from shoal.agent.tls.client_hello import FIELDS_MAX, RECORD_BYTES_MAX, has_certificate, is_whole
from shoal.tls import CERTIFIED, HTTP


def greeting(*protocols: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, name: str = "") -> bytes:
    """The first bytes of OpenSSL as a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = version
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name or None)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_has_a_certificate_says_so(version: ssl.TLSVersion) -> None:
    """Among other protocols and extensions; browsers offer their own."""
    assert has_certificate(greeting(CERTIFIED, HTTP, version=version))
    assert has_certificate(greeting("h2", HTTP, CERTIFIED, version=version, name="shoal.example.com"))
    for others in ((), (HTTP,), ("h2", HTTP), (f"{CERTIFIED}s",), (CERTIFIED[:-1],)):
        assert not has_certificate(greeting(*others, version=version))


def test_a_greeting_is_whole_with_its_last_byte() -> None:
    """What follows does not matter."""
    whole = greeting(CERTIFIED)
    assert [is_whole(whole[:count]) for count in range(len(whole))] == [False] * len(whole)
    assert is_whole(whole)
    assert is_whole(whole + b"\x17\x03")
    assert has_certificate(whole + b"\x17\x03")
    assert not any(has_certificate(whole[:count]) for count in range(len(whole)))


def test_nothing_is_waited_for_that_cannot_come() -> None:
    """Bytes that are no TLS, and a record longer than any."""
    assert is_whole(b"G")
    assert not is_whole(b"\x16\x03\x01" + RECORD_BYTES_MAX.to_bytes(2))
    assert is_whole(b"\x16\x03\x01" + (RECORD_BYTES_MAX + 1).to_bytes(2))


@given(st.binary(max_size=400), st.integers(0, 500), st.integers(0, 255), st.integers(0, 600))
def test_any_bytes_have_an_answer(noise: bytes, at: int, value: int, end: int) -> None:
    """Noise, and a good greeting with one byte changed, cut anywhere."""
    good = bytearray(GOOD)
    good[at % len(good)] = value
    for data in (noise, b"\x16\x03\x01" + noise, bytes(good[:end])):
        assert has_certificate(data) in (False, True)
        assert is_whole(data) in (False, True)


GOOD = greeting(CERTIFIED, HTTP)


@pytest.mark.parametrize(
    ("protocols", "extensions"), [(1, 0), (50, 50), (100, 27), (100, 28), (16_000, 0), (1, 4_000)]
)
def test_few_fields_of_a_greeting_are_looked_at(protocols: int, extensions: int) -> None:
    """However many a stranger sends: our own name counts among the first ones only."""
    own = CERTIFIED.encode()
    names = (protocols - 1) * b"\0" + bytes([len(own)]) + own
    alpn = len(names).to_bytes(2) + names
    listed = b"\x0a\x0a\0\0" * extensions + b"\0\x10" + len(alpn).to_bytes(2) + alpn
    body = b"\x03\x03" + bytes(32) + b"\0\0\x02\x13\x01\x01\0" + len(listed).to_bytes(2) + listed
    hello = b"\x16\x03\x01" + (len(body) + 4).to_bytes(2) + b"\x01" + len(body).to_bytes(3) + body
    seen = client_hello._fields(memoryview(hello))
    assert sum(1 for _ in seen) == extensions + 1 + protocols
    assert has_certificate(hello) == (extensions + 1 + protocols <= FIELDS_MAX)
