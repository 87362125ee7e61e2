"""UDP packets: checksum, compression and compounds around messages.

Law of this file: bytes of one packet to messages and back. The seal and the label stand outside these:
envelope.py wraps what encode_packet gives and unwraps before decode_packet.

Order, outermost first: checksum, compression, compound, message. A checksum is optional
on every packet: gossip carries it, pings and answers usually do not, because senders
look the peer up under its address as a name.
"""

import zlib
from typing import NamedTuple

from shoal.membership.wire.dialect import Fields, pack, unpack_struct
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.lzw import compress, decompress
from shoal.membership.wire.messages import Message, Type, decode_message

MAX_PACKET_BYTES = 65_507
"""The largest UDP payload over IPv4; also what one packet may grow to when decompressed."""

MAX_PARTS = 255
"""A compound counts its parts in one byte."""

MAX_NESTING = 4
"""Compounds and compressions inside one another: real senders use two."""

MAX_MESSAGES = 2 * MAX_PARTS
"""Messages of one packet, over all nested compounds."""

COMPOUND_OVERHEAD_BYTES = 2
PART_OVERHEAD_BYTES = 2


class Packet(NamedTuple):
    """What a packet held: its good messages, and the faults of parts that were not."""

    messages: tuple[Message, ...]
    faults: tuple[WireError, ...]


def encode_packet(parts: tuple[bytes, ...], *, checksum: bool = False) -> bytes:
    """One packet of one or more encoded messages. None is compressed: small packets gain little from LZW."""
    assert 1 <= len(parts) <= MAX_PARTS
    data = parts[0]
    if len(parts) > 1:
        lengths = b"".join(len(part).to_bytes(2, "big") for part in parts)
        data = bytes((Type.COMPOUND, len(parts))) + lengths + b"".join(parts)
    if checksum:
        data = bytes((Type.CHECKSUM,)) + zlib.crc32(data).to_bytes(4, "big") + data
    return data


def encode_compressed(data: bytes) -> bytes:
    """Algorithm 0 is LZW, the only one there is."""
    return bytes((Type.COMPRESS,)) + pack({"Algo": 0, "Buf": compress(data)})


def decompress_fields(fields: Fields, max_bytes: int) -> bytes:
    """The content of a compress wrapper's body."""
    if fields.unsigned("Algo", 8) != 0:
        raise WireError("unsupported", "a compression other than LZW")
    return decompress(fields.raw("Buf"), max_bytes)


def decode_packet(data: bytes) -> Packet:
    """All messages of a packet. A bad wrapper raises WireError; a bad part of a
    compound is a fault beside the good ones."""
    if len(data) > MAX_PACKET_BYTES:
        raise WireError("limit", f"a packet of {len(data)} bytes")
    if data[:1] == bytes((Type.CHECKSUM,)) and len(data) >= 5:
        if zlib.crc32(data[5:]) != int.from_bytes(data[1:5], "big"):
            raise WireError("checksum", "the packet's CRC-32 differs")
        data = data[5:]
    messages: list[Message] = []
    faults: list[WireError] = []
    _decode_into(data, 0, messages, faults)
    return Packet(tuple(messages), tuple(faults))


def _decode_into(data: bytes, nesting: int, messages: list[Message], faults: list[WireError]) -> None:
    if nesting > MAX_NESTING:
        raise WireError("limit", f"wrapped more than {MAX_NESTING} times")
    if len(messages) + len(faults) >= MAX_MESSAGES:
        raise WireError("limit", f"more than {MAX_MESSAGES} messages in a packet")
    if data[:1] == bytes((Type.COMPRESS,)):
        fields, _ = unpack_struct(data, 1)
        content = decompress_fields(fields, MAX_PACKET_BYTES)
        _decode_into(content, nesting + 1, messages, faults)
    elif data[:1] == bytes((Type.COMPOUND,)):
        for part in _split_compound(data, faults):
            try:
                _decode_into(part, nesting + 1, messages, faults)
            except WireError as fault:
                if fault.reason == "limit":
                    raise
                faults.append(fault)
    else:
        messages.append(decode_message(data))


def _split_compound(data: bytes, faults: list[WireError]) -> list[bytes]:
    """The complete parts; a compound that ends early keeps the parts before the cut, as memberlist does."""
    if len(data) < 2 or len(data) < 2 + 2 * data[1]:
        raise WireError("short", "a compound without its lengths")
    count = data[1]
    position = 2 + 2 * count
    parts: list[bytes] = []
    for number in range(count):
        length = int.from_bytes(data[2 + 2 * number : 4 + 2 * number], "big")
        if position + length > len(data):
            faults.append(WireError("short", f"{count - number} parts of a compound are cut off"))
            break
        parts.append(data[position : position + length])
        position += length
    return parts
