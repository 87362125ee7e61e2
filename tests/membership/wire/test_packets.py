"""UDP framing: checksums, compounds and compression in any order, and their bounds."""

import zlib

import pytest

from shoal.membership.wire.errors import WireError
from shoal.membership.wire.lzw import compress
from shoal.membership.wire.messages import Nack, Ping, Suspect, User, encode_message
from shoal.membership.wire.packets import (
    MAX_MESSAGES,
    decode_packet,
    encode_compressed,
    encode_packet,
)

NACK = encode_message(Nack(1))
JOIN_INTENT = bytes.fromhex("080182a54c54696d6501a44e6f6465a3707931")


def test_checksum_vectors() -> None:
    """The checksum wrapper as a real agent writes it."""
    assert encode_packet((NACK,), checksum=True).hex() == "0c097351570b81a55365714e6f01"
    captured = bytes.fromhex("0cbdb99ecc") + JOIN_INTENT
    assert encode_packet((JOIN_INTENT,), checksum=True) == captured
    assert decode_packet(captured).messages == (User(JOIN_INTENT[1:]),)


def test_wrong_checksum_is_refused() -> None:
    """One flipped bit anywhere."""
    packet = bytearray(encode_packet((NACK,), checksum=True))
    packet[-1] ^= 1
    with pytest.raises(WireError) as caught:
        decode_packet(bytes(packet))
    assert caught.value.reason == "checksum"


def test_ping_with_piggybacked_intents() -> None:
    """The shape of a captured ping packet: compound of three, lengths first."""
    ping = encode_message(Ping(1, "py1"))
    packet = encode_packet((ping, JOIN_INTENT, JOIN_INTENT))
    assert packet[:8] == bytes((7, 3)) + len(ping).to_bytes(2, "big") + b"\x00\x13\x00\x13"
    assert decode_packet(packet).messages == (
        Ping(1, "py1"),
        User(JOIN_INTENT[1:]),
        User(JOIN_INTENT[1:]),
    )


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 255])
def test_round_trip(checksum: bool, compressed: bool, count: int) -> None:
    """Every combination of the layers."""
    messages = tuple(Suspect(number, f"node-{number}", "accuser") for number in range(count))
    parts = tuple(encode_message(message) for message in messages)
    if compressed:
        parts = (encode_compressed(encode_packet(parts)),)
    packet = encode_packet(parts, checksum=checksum)
    assert decode_packet(packet).messages == messages


def test_cut_compound_keeps_the_parts_before_the_cut() -> None:
    """As memberlist does; the cut is reported as a fault."""
    packet = encode_packet((NACK, NACK, NACK))[:-1]
    decoded = decode_packet(packet)
    assert decoded.messages == (Nack(1), Nack(1))
    assert [fault.reason for fault in decoded.faults] == ["short"]


def test_bad_part_does_not_spoil_the_good_ones() -> None:
    """A message type of a newer version beside ones we know."""
    decoded = decode_packet(encode_packet((NACK, b"\x63\x80", NACK)))
    assert decoded.messages == (Nack(1), Nack(1))
    assert [fault.reason for fault in decoded.faults] == ["type"]


def test_checksum_deeper_than_the_outside_is_no_message() -> None:
    """Real agents refuse it there, too."""
    decoded = decode_packet(encode_packet((NACK, encode_packet((NACK,), checksum=True))))
    assert decoded.messages == (Nack(1),)
    assert len(decoded.faults) == 1


def test_nesting_is_bounded() -> None:
    """Compressions inside compressions end at a small depth, not at the stack's."""
    data = NACK
    for _ in range(20):
        data = encode_compressed(data)
    with pytest.raises(WireError) as caught:
        decode_packet(data)
    assert caught.value.reason == "limit"


def test_messages_of_a_packet_are_bounded() -> None:
    """Compounds of compounds of tiny messages multiply; the product is bounded."""
    inner = encode_packet(tuple([NACK] * 255))
    with pytest.raises(WireError) as caught:
        decode_packet(encode_packet(tuple([inner] * 4)))
    assert caught.value.reason == "limit"
    assert MAX_MESSAGES == 510


def test_bomb_in_a_packet_is_refused() -> None:
    """The cap of a decompressed packet is that of a packet."""
    coded = compress(bytes(1_000_000))
    bomb = b"\x09\x82\xa4Algo\x00\xa3Buf\xda" + len(coded).to_bytes(2, "big") + coded
    with pytest.raises(WireError) as caught:
        decode_packet(bomb)
    assert caught.value.reason == "limit"


def test_other_compressions_are_unsupported() -> None:
    """Algorithm 0 is the only one."""
    with pytest.raises(WireError) as caught:
        decode_packet(b"\x09\x82\xa4Algo\x01\xa3Buf\xa0")
    assert caught.value.reason == "unsupported"


def test_checksum_is_crc32_ieee_big_endian() -> None:
    """Over everything after the five bytes of the header."""
    packet = encode_packet((NACK,), checksum=True)
    assert int.from_bytes(packet[1:5], "big") == zlib.crc32(NACK)
