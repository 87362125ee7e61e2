"""A whole stream, from its first byte: label, seal, message, found in bytes that come in any pieces.

Law of this file: the layers around wire/streams.py, peeled in memberlist's order; what may be peeled is the
envelope's to say. One stream is one message; bytes after it are ignored, as memberlist ignores them.
"""

from collections.abc import Generator

from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import StreamMessage, Type
from shoal.membership.wire.sealing import (
    MAX_LABEL_BYTES,
    OVERHEAD_BYTES,
    PLAIN_VERSION,
    STREAM_HEADER_BYTES,
)
from shoal.membership.wire.streams import MAX_STREAM_BYTES, StreamDecoder

MAX_WRAPPING_BYTES = 2 + MAX_LABEL_BYTES + STREAM_HEADER_BYTES + OVERHEAD_BYTES + 16
"""Label, header, seal and padding around a message of MAX_STREAM_BYTES."""


class WrappedStreamDecoder:
    """feed() answers None until the message is whole, and raises WireError.

    `accepted`: the peer opened the connection, so that its label comes first; answers carry none. `version`
    is that of the seal, for the answer.
    """

    def __init__(self, envelope: Envelope, *, accepted: bool, max_bytes: int = MAX_STREAM_BYTES) -> None:
        self.version = PLAIN_VERSION
        self._envelope = envelope
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._message = StreamDecoder(max_bytes)
        self._plain = False
        self._parser = self._parse(accepted)
        self._needed = next(self._parser)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer) + self._message.buffered_bytes

    def feed(self, data: bytes) -> StreamMessage | None:
        if self._plain:
            return self._message.feed(data)
        self._buffer += data
        if len(self._buffer) > self._max_bytes + MAX_WRAPPING_BYTES:
            raise WireError("limit", f"a stream message of more than {self._max_bytes} bytes")
        while len(self._buffer) >= self._needed:
            try:
                self._needed = next(self._parser)
            except StopIteration as finished:
                message: StreamMessage | None = finished.value
                return message
        return None

    def _parse(self, accepted: bool) -> Generator[int, None, StreamMessage | None]:
        """Yields how many bytes are needed to go on; returns the message of a sealed stream, or what a plain
        one has given so far."""
        yield 1
        if accepted:
            yield from self._label()
            yield 1
        if self._buffer[0] != Type.ENCRYPT:
            self._envelope.check_plain()
            self._plain = True
            begun, self._buffer = bytes(self._buffer), bytearray()
            return self._message.feed(begun)
        yield STREAM_HEADER_BYTES
        header = bytes(self._buffer[:STREAM_HEADER_BYTES])
        size = int.from_bytes(header[1:], "big")
        if size > self._max_bytes + MAX_WRAPPING_BYTES:
            raise WireError("limit", f"a sealed stream announces {size} bytes")
        self._envelope.check_sealed()
        yield STREAM_HEADER_BYTES + size
        blob = bytes(self._buffer[STREAM_HEADER_BYTES : STREAM_HEADER_BYTES + size])
        self._buffer = bytearray()
        opened = self._envelope.open_stream(header, blob)
        self.version = opened.version
        message = self._message.feed(opened.content)
        if message is None:
            raise WireError("short", "a sealed message that ends early")
        return message

    def _label(self) -> Generator[int, None, None]:
        label = b""
        if self._buffer[0] == Type.LABEL:
            yield 2
            size = self._buffer[1]
            if not size:
                raise WireError("format", "an empty label")
            yield 2 + size
            label = bytes(self._buffer[2 : 2 + size])
            del self._buffer[: 2 + size]
        self._envelope.check_label(label)
