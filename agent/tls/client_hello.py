"""The first bytes of a connection: whether they are TLS, whether all of them are there, and what they offer.

Law of this file: pure; any bytes have an answer, none raises. Nothing that is let in depends on it: OpenSSL
reads the same bytes afterwards. It decides only whether a client is asked for its certificate. A browser that
is asked shows its user a choice of certificates. So where tls_clients is `none` those are asked that name the
protocol CERTIFIED (ALPN, RFC 7301). Agents do, and Shoal's own clients that have a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from shoal.tls import CERTIFIED

HANDSHAKE_RECORD: Final = 22
"""The first byte of TLS (RFC 8446, section 5.1)."""
RECORD_BYTES_MAX: Final = 2**14
"""Of one record; a longer one is no TLS, and OpenSSL says so."""
FIELDS_MAX: Final = 128
"""Extensions and protocols that are looked at: browsers send some twenty. A record has room for 16,000, which
would take the event loop 10 ms, twenty times a handshake."""
_HEAD_BYTES: Final = 5
_CLIENT_HELLO: Final = 1
_VERSION_AND_RANDOM_BYTES: Final = 2 + 32
_ALPN: Final = 16


class _Broken(Exception):
    """Not a client's greeting."""


def is_whole(begun: bytes | bytearray) -> bool:
    """Whether the first record is there; more of what is no TLS is not waited for."""
    if begun and begun[0] != HANDSHAKE_RECORD:
        return True
    if len(begun) < _HEAD_BYTES:
        return False
    length = int.from_bytes(begun[3:_HEAD_BYTES])
    return length > RECORD_BYTES_MAX or len(begun) >= _HEAD_BYTES + length


def has_certificate(begun: bytes | bytearray) -> bool:
    """Whether the client says that it has a certificate. False where the greeting is longer than a record,
    or has more than FIELDS_MAX fields: agents send a short one."""
    try:
        return CERTIFIED.encode() in islice(_fields(memoryview(begun)), FIELDS_MAX)
    except _Broken:
        return False


def _fields(begun: memoryview) -> Iterator[bytes | None]:
    """Each protocol, and None for each extension (RFC 8446, section 4.1.2). Raises _Broken."""
    record, _ = _vector(begun[3:], 2)
    if record[:1] != bytes([_CLIENT_HELLO]):
        raise _Broken
    hello, _ = _vector(record[1:], 3)
    rest = hello[_VERSION_AND_RANDOM_BYTES:]
    for length_bytes in (1, 2, 1):  # session, cipher suites, compression
        _, rest = _vector(rest, length_bytes)
    extensions, _ = _vector(rest, 2)
    while extensions:
        kind = int.from_bytes(extensions[:2])
        extension, extensions = _vector(extensions[2:], 2)
        yield None
        if kind == _ALPN:
            names, _ = _vector(extension, 2)
            while names:
                name, names = _vector(names, 1)
                yield bytes(name)


def _vector(data: memoryview, length_bytes: int) -> tuple[memoryview, memoryview]:
    """A field after its length, and what follows it. Raises _Broken."""
    end = length_bytes + int.from_bytes(data[:length_bytes])
    if len(data) < end:
        raise _Broken
    return data[length_bytes:end], data[end:]
