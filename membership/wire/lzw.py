"""LZW as Go's compress/lzw speaks it: least significant bit first, 8-bit literals, codes of 9 to 12 bits.

Law of this file: bytes to bytes, no protocol. Memberlist compresses every stream message with it,
so decoding is a duty; the output is capped because a few kilobytes of codes can describe megabytes.

Unlike GIF and TIFF files the width grows one code late ("no early change").
"""

from shoal.membership.wire.errors import WireError

_CLEAR = 256
_END = 257
_FIRST_WIDTH = 9
_LAST_WIDTH = 12
_LAST_CODE = (1 << _LAST_WIDTH) - 1


def compress(data: bytes) -> bytes:
    """Encode; the bytes equal those of Go's writer."""
    writer = _BitWriter()
    writer.write(_CLEAR, _FIRST_WIDTH)
    table: dict[int, int] = {}
    highest, width = _END, _FIRST_WIDTH
    prefix = -1
    for byte in data:
        if prefix < 0:
            prefix = byte
            continue
        pair = prefix << 8 | byte
        known = table.get(pair)
        if known is not None:
            prefix = known
            continue
        writer.write(prefix, width)
        prefix = byte
        highest += 1
        if highest == 1 << width:
            width += 1
        if highest == _LAST_CODE:
            writer.write(_CLEAR, width)
            table.clear()
            highest, width = _END, _FIRST_WIDTH
        else:
            table[pair] = highest
    if prefix >= 0:
        writer.write(prefix, width)
        highest += 1
        if highest == 1 << width and width < _LAST_WIDTH:
            width += 1
        elif highest == _LAST_CODE:
            writer.write(_CLEAR, width)
            width = _FIRST_WIDTH
    writer.write(_END, width)
    return writer.finish()


class _BitWriter:
    __slots__ = ("_bits", "_count", "_output")

    def __init__(self) -> None:
        self._output = bytearray()
        self._bits = 0
        self._count = 0

    def write(self, code: int, width: int) -> None:
        self._bits |= code << self._count
        self._count += width
        while self._count >= 8:
            self._output.append(self._bits & 0xFF)
            self._bits >>= 8
            self._count -= 8

    def finish(self) -> bytes:
        if self._count:
            self._output.append(self._bits & 0xFF)
        return bytes(self._output)


def decompress(data: bytes, max_bytes: int) -> bytes:
    """Decode at most max_bytes of output; raises WireError for a bad code, a missing
    end mark or too much output."""
    output = bytearray()
    table: list[bytes] = [bytes((value,)) for value in range(256)] + [b""] * (_LAST_CODE + 1 - 256)
    highest, width = _END, _FIRST_WIDTH
    last = b""
    bits, count, position, size = 0, 0, 0, len(data)
    while True:
        while count < width:
            if position >= size:
                raise WireError("format", "compressed data without an end mark")
            bits |= data[position] << count
            position += 1
            count += 8
        code = bits & ((1 << width) - 1)
        bits >>= width
        count -= width
        if code == _CLEAR:
            highest, width, last = _END, _FIRST_WIDTH, b""
            continue
        if code == _END:
            return bytes(output)
        chunk = _expand(table, code, highest, last)
        if len(output) + len(chunk) > max_bytes:
            raise WireError("limit", f"more than {max_bytes} bytes when decompressed")
        output += chunk
        if last:
            table[highest] = last + chunk[:1]
        last = chunk
        highest += 1
        if highest >= 1 << width:
            if width == _LAST_WIDTH:
                last, highest = b"", highest - 1
            else:
                width += 1


def _expand(table: list[bytes], code: int, highest: int, last: bytes) -> bytes:
    if code == highest and last:
        return last + last[:1]  # the code being defined by this very step
    chunk = table[code] if code <= highest else b""
    if not chunk:
        raise WireError("format", f"compressed data uses code {code} before it is defined")
    return chunk
