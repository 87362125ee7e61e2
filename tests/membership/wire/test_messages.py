"""Memberlist's messages against bytes captured from a real Serf agent (Serf 0.9.4 with memberlist 0.2.2)."""

import pytest

from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import (
    VSN,
    Ack,
    Alive,
    Dead,
    Endpoint,
    IndirectPing,
    Message,
    Nack,
    Ping,
    RemoteError,
    Suspect,
    User,
    decode_message,
    encode_message,
    host_bytes,
    host_text,
)

ALPHA = Endpoint(bytes((127, 0, 0, 1)), 17946)
META = b"\xff\x82\xa2dc\xa4east\xa4role\xa3web"

CAPTURED: list[tuple[str, Message]] = [
    (
        (
            "0085a44e6f6465a3707931a55365714e6f01aa536f7572636541646472a47f000001aa536f757263654e6f6465a5616c706861"
            "aa536f75726365506f7274cd461a"
        ),
        Ping(1, "py1", ALPHA, "alpha"),
    ),
    (
        (
            "0486a441646472a47f000001ab496e6361726e6174696f6e01a44d657461b3ff82a26463a465617374a4726f6c65a3776562"
            "a44e6f6465a5616c706861a4506f7274cd461aa356736ea6010502020505"
        ),
        Alive(1, "alpha", ALPHA, META, VSN),
    ),
    (
        "0383a446726f6da567616d6d61ab496e6361726e6174696f6e01a44e6f6465a470796b32",
        Suspect(1, "pyk2", "gamma"),
    ),
    ("0583a446726f6da567616d6d61ab496e6361726e6174696f6e01a44e6f6465a470796b32", Dead(1, "pyk2", "gamma")),
    (
        "0583a446726f6da66c6561766572ab496e6361726e6174696f6e01a44e6f6465a66c6561766572",
        Dead(1, "leaver", "leaver"),
    ),
    (
        (
            "0188a44e61636bc3a44e6f6465a470796b32a4506f7274cd4288a55365714e6f0aaa536f7572636541646472a47f00000c"
            "aa536f757263654e6f6465a567616d6d61aa536f75726365506f7274cd461ca6546172676574a47f000020"
        ),
        IndirectPing(
            10,
            Endpoint(bytes((127, 0, 0, 32)), 17032),
            "pyk2",
            True,
            Endpoint(bytes((127, 0, 0, 12)), 17948),
            "gamma",
        ),
    ),
    ("0b81a55365714e6f01", Nack(1)),
    ("080182a54c54696d6501a44e6f6465a3707931", User(bytes.fromhex("0182a54c54696d6501a44e6f6465a3707931"))),
]


@pytest.mark.parametrize(("captured", "message"), CAPTURED, ids=lambda value: type(value).__name__)
def test_captured_messages_decode(captured: str, message: Message) -> None:
    """What a real agent sent means what it meant."""
    assert decode_message(bytes.fromhex(captured)) == message


@pytest.mark.parametrize(("captured", "message"), CAPTURED, ids=lambda value: type(value).__name__)
def test_our_bytes_equal_the_captured_ones(captured: str, message: Message) -> None:
    """We write what a real agent would, byte for byte."""
    assert encode_message(message).hex() == captured


def test_ack_with_a_coordinate() -> None:
    """The payload of a real ack (a network coordinate) is carried, not understood."""
    coordinate = b"\x01\x84" + bytes(128)
    encoded = encode_message(Ack(1, coordinate))
    assert encoded[:12] == b"\x02\x82\xa7Payload\xda\x00"
    assert decode_message(encoded) == Ack(1, coordinate)


def test_ack_without_payload_is_nil() -> None:
    """Go writes an absent payload as nil, and so do we."""
    assert encode_message(Ack(72)) == b"\x02\x82\xa7Payload\xc0\xa5SeqNo\x48"


def test_error_message_uses_the_old_raw_family() -> None:
    """Text of 32 to 255 bytes must be raw 16, never str 8, which Go's old dialect does not write."""
    text = "Remote state is encrypted and encryption is not configured"
    assert encode_message(RemoteError(text)) == b"\x0d\x81\xa5Error\xda\x00\x3a" + text.encode()


@pytest.mark.parametrize("empty", [b"\xc0", b"\xa0", b"\xc4\x00", None], ids=["nil", "raw", "bin", "missing"])
def test_nil_empty_and_missing_meta_are_one(empty: bytes | None) -> None:
    """Go turns empty bytes into nil; telling them apart makes a node refute itself for ever."""
    head = b"\xa4Addr\xa4\x7f\x00\x00\x01\xabIncarnation\x01\xa4Node\xa1n\xa4Port\x05"
    body = b"\x04\x84" + head if empty is None else b"\x04\x85" + head + b"\xa4Meta" + empty
    decoded = decode_message(body)
    assert decoded == Alive(1, "n", Endpoint(bytes((127, 0, 0, 1)), 5), b"", b"")


@pytest.mark.parametrize("length", range(9))
def test_only_a_whole_vsn_counts(length: int) -> None:
    """One to five bytes crash a real agent when passed on, so they are as good as absent."""
    vsn = (VSN + b"\x01\x02")[:length]
    body = b"\x04\x85\xa4Addr\xa4\x7f\x00\x00\x01\xabIncarnation\x01\xa4Node\xa1n\xa4Port\x05\xa3Vsn"
    decoded = decode_message(body + bytes((0xA0 | length,)) + vsn)
    assert isinstance(decoded, Alive)
    assert decoded.vsn == (VSN if length >= 6 else b"")


def test_vsn_as_an_array_of_numbers() -> None:
    """Go's decoder takes byte slices as arrays, so ours does."""
    body = b"\x04\x85\xa4Addr\x94\x7f\x00\x00\x01\xabIncarnation\x01\xa4Node\xa1n\xa4Port\x05\xa3Vsn\x96"
    decoded = decode_message(body + VSN)
    assert decoded == Alive(1, "n", Endpoint(bytes((127, 0, 0, 1)), 5), b"", VSN)


def test_unknown_fields_are_ignored() -> None:
    """A newer memberlist may add fields."""
    assert decode_message(b"\x0b\x82\xa3New\x93\x01\x02\x03\xa5SeqNo\x07") == Nack(7)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "short"),
        (b"\x0b", "short"),
        (b"\x0b\x81\xa5SeqNo", "short"),
        (b"\xf4\x03foo", "type"),
        (b"\x0d\x81\xa5Error\xa1x", "type"),
        (b"\x0b\x05", "format"),
        (b"\x0b\x81\xa5SeqNo\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "format"),
        (b"\x0b\x81\xa5SeqNo\xff", "format"),
        (b"\x0b\x81\xa5SeqNo\xa1x", "format"),
        (b"\x0b\x81\x90\x01", "format"),
        (b"\x0b\x81\xa5SeqNo\xd4\x00\x00", "format"),
        (b"\x0b\x81\xa5SeqNo\xc1", "format"),
        (b"\x03\x81\xa4Node\xa1\xff", "format"),
        (b"\x03\x81\xa4Node\xa0", "format"),
        (b"\x03\x81\xa4Node\xda\x00\x81" + b"n" * 129, "format"),
        (b"\x04\x83\xa4Addr\xa0\xa4Node\xa1n\xa4Port\x05", "format"),
        (b"\x04\x83\xa4Addr\xa4\x7f\x00\x00\x01\xa4Node\xa1n\xa4Port\x00", "format"),
    ],
)
def test_bad_messages_raise_wire_error(data: bytes, reason: str) -> None:
    """Each fault has its reason; none escapes as another exception."""
    with pytest.raises(WireError) as caught:
        decode_message(data)
    assert caught.value.reason == reason


def test_addresses_as_text() -> None:
    """An IPv4 address in IPv6 clothes, as agents bound to 0.0.0.0 send it, can be dialled as IPv4."""
    assert host_text(host_bytes("127.0.0.1")) == "127.0.0.1"
    assert host_text(bytes(10) + b"\xff\xff\x7f\x00\x00\x01") == "127.0.0.1"
    assert host_text(host_bytes("::1")) == "::1"
