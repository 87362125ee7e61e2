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
_FLUSH_BYTES = 32
_FLUSH_BITS = 8 * _FLUSH_BYTES
_FLUSH_MASK = (1 << _FLUSH_BITS) - 1
_LITERALS = [bytes((value,)) for value in range(256)] + [b""] * (_LAST_CODE + 1 - 256)


def compress(data: bytes) -> bytes:
    """Encode; the bytes equal those of Go's writer. The bits wait in one number: a call for each code would
    be half of the work."""
    output = bytearray()
    bits, count = _CLEAR, _FIRST_WIDTH
    table: dict[int, int] = {}
    known = table.get
    highest, width = _END, _FIRST_WIDTH
    prefix = -1
    for byte in data:
        if prefix < 0:
            prefix = byte
            continue
        pair = prefix << 8 | byte
        code = known(pair)
        if code is not None:
            prefix = code
            continue
        bits |= prefix << count
        count += width
        if count >= _FLUSH_BITS:
            output += (bits & _FLUSH_MASK).to_bytes(_FLUSH_BYTES, "little")
            bits >>= _FLUSH_BITS
            count -= _FLUSH_BITS
        prefix = byte
        highest += 1
        if highest == 1 << width:
            width += 1
        if highest == _LAST_CODE:
            bits |= _CLEAR << count
            count += width
            table.clear()
            highest, width = _END, _FIRST_WIDTH
        else:
            table[pair] = highest
    if prefix >= 0:
        bits |= prefix << count
        count += width
        highest += 1
        if highest == 1 << width and width < _LAST_WIDTH:
            width += 1
        elif highest == _LAST_CODE:
            bits |= _CLEAR << count
            count += width
            width = _FIRST_WIDTH
    bits |= _END << count
    count += width
    return bytes(output + bits.to_bytes((count + 7) // 8, "little"))


def decompress(data: bytes, max_bytes: int) -> bytes:
    """Decode at most max_bytes of output; raises WireError for a bad code, a missing
    end mark or too much output."""
    output = bytearray()
    table = _LITERALS.copy()
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
        chunk = table[code] if code < highest else b""
        if not chunk:
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
