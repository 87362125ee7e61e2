"""A frame of which a single bit has flipped, told from its checksum: pure.

A checksum is linear: one flipped bit changes it by an amount that depends only on how many checked bits
follow. CRC-32C tells all of them apart up to 2**31 - 1 bits (its Hamming distance there is 4: P. Koopman,
"32-bit cyclic redundancy codes for Internet applications", DSN 2002), far above MAX_FRAME_BYTES. So whether
one bit is all that a frame lacks can be computed, without trying each.

Other bytes look so by chance in one of 2**32 / bits cases (a 128 KiB frame: 1 of 4096): good enough to ask
others for the entry, never to serve it.
"""

from collections.abc import Iterable
from functools import cache

import crc32c

from shoal.format.batch import (
    MAX_FRAME_BYTES,
    STAMP_BODY_LENGTH_AT,
    STAMP_BYTES,
    STAMP_CHECKSUM_AT,
    STAMP_MAGIC,
    BatchError,
    Frame,
    LogIdentity,
    parse_frame,
)

_POLYNOMIAL = 0x82F63B78  # CRC-32C, the lowest power in the highest bit (RFC 3720, B.4)
_HEAD_BITS = 64  # mark and metadata size
_LENGTH_BITS = 64
_CHECKSUM_BYTES = 4
_TOP_BIT = 1 << 31


def without_flip(buffer: bytes | bytearray | memoryview, identity: LogIdentity) -> Frame | None:
    """The frame that would stand at the start of the buffer if one bit were the other way; None when that is
    not so, and for a frame that is whole."""
    data = bytearray(buffer[:MAX_FRAME_BYTES])
    stamp_at = _stamp_position(data)
    if stamp_at is not None:
        bit = _flipped_bit(data, stamp_at, identity)
        found = None if bit is None else _flipped(data, bit, identity)
        if found is not None:
            return found
    # With a length that lies, what the checksum covers is unknown: those bits are tried.
    tried = (_flipped(data, bit, identity) for bit in _length_bits(data, stamp_at))
    return next((frame for frame in tried if frame is not None), None)


def _stamp_position(data: bytearray) -> int | None:
    """Where the head says that the stamp lies; None when that is not in the data."""
    position = 8 + int.from_bytes(data[4:8], "little") - STAMP_BYTES
    return position if 8 <= position <= len(data) - STAMP_BYTES else None


def _length_bits(data: bytearray, stamp_at: int | None) -> Iterable[int]:
    """The bits that say how long the frame is: of its head, or of the stamp that the head leads to."""
    head = range(min(_HEAD_BITS, len(data) * 8))
    if stamp_at is None:
        return head
    first = (stamp_at + STAMP_BODY_LENGTH_AT) * 8
    lengths = range(first, first + _LENGTH_BITS)
    return lengths if data.startswith(STAMP_MAGIC, stamp_at) else head


def _flipped(data: bytearray, bit: int, identity: LogIdentity) -> Frame | None:
    """The frame with this bit the other way, if it verifies then."""
    data[bit // 8] ^= 1 << bit % 8
    try:
        return parse_frame(memoryview(data), 0, identity)
    except BatchError:
        return None
    finally:
        data[bit // 8] ^= 1 << bit % 8


def _flipped_bit(data: bytearray, stamp_at: int, identity: LogIdentity) -> int | None:
    """Which bit of the data is wrong if the lengths are right and one bit is."""
    length_at, checksum_at = stamp_at + STAMP_BODY_LENGTH_AT, stamp_at + STAMP_CHECKSUM_AT
    behind = checksum_at + _CHECKSUM_BYTES
    total = stamp_at + STAMP_BYTES + int.from_bytes(data[length_at : length_at + 8], "little")
    if total > len(data):
        return None
    stored = int.from_bytes(data[checksum_at:behind], "little")
    with memoryview(data) as view:
        computed = crc32c.crc32c(view[behind:total], crc32c.crc32c(view[:checksum_at], identity.seed))
    difference = stored ^ computed
    if difference.bit_count() == 1:
        return checksum_at * 8 + difference.bit_length() - 1
    checked = total - _CHECKSUM_BYTES
    following = _bits_behind_flip(difference, checked * 8)
    if following is None:
        return None
    byte = checked - 1 - following // 8
    return (byte if byte < checksum_at else byte + _CHECKSUM_BYTES) * 8 + 7 - following % 8


def _bits_behind_flip(difference: int, bits: int) -> int | None:
    """How many of the checked `bits` follow the flipped one that changes the checksum by `difference`; None
    when no single one does. A discrete logarithm: small steps from one end, large ones from the other
    (Shanks)."""
    small_steps = 1 << (bits.bit_length() + 1) // 2  # at least the root of `bits`
    seen, (first, second, third, fourth) = _small_steps(small_steps), _large_step(small_steps)
    register = difference
    for following in range(0, bits, small_steps):
        small = seen.get(register)
        if small is not None:
            return following + small if following + small < bits else None
        low = first[register & 0xFF] ^ second[register >> 8 & 0xFF]
        register = low ^ third[register >> 16 & 0xFF] ^ fourth[register >> 24]
    return None


@cache
def _small_steps(count: int) -> dict[int, int]:
    """How many bits follow a flip that changes the checksum so. Powers of two up to 2**13 are asked for."""
    seen: dict[int, int] = {}
    register = _POLYNOMIAL  # the change by a flip of the last bit
    for steps in range(count):
        seen[register] = steps
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
    return seen


@cache
def _large_step(steps: int) -> list[list[int]]:
    """For each byte of the register, the lowest first, its value so many steps back: the step is linear."""
    tables = []
    for lowest_bit in range(0, 32, 8):
        table = [0]
        for bit in range(lowest_bit, lowest_bit + 8):
            column = _back(1 << bit, steps)
            table += [entry ^ column for entry in table]
        tables.append(table)
    return tables


def _back(register: int, steps: int) -> int:
    """The register so many bits before."""
    for _ in range(steps):
        if register & _TOP_BIT:
            register = (register ^ _POLYNOMIAL) << 1 | 1
        else:
            register <<= 1
    return register
