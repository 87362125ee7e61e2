"""Keys, seals and labels: byte-exact, and refused when they are not ours."""

import os
import random
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.keyring import (
    MAX_KEYS,
    Keyring,
    KeyringError,
    fingerprint,
    key_text,
    parse_key,
)
from shoal.membership.wire.messages import Ack, Endpoint, Ping, RemoteError
from shoal.membership.wire.sealing import (
    BLOCK_BYTES,
    label_header,
    open_blob,
    seal,
    split_label,
)
from shoal.membership.wire.streams import StreamDecoder, encode_stream

KEY = bytes(range(32))
OTHER = bytes(range(32, 64))
NONCE = bytes(range(12))
NACK = bytes.fromhex("0b81a55365714e6f01")
HERE = Endpoint(bytes((127, 0, 0, 1)), 7946)

# The reference's vectors: memberlist's own code path, exercised against a Serf agent.
UDP_V1 = "01000102030405060708090a0b4c837348a0948c748c8c8401540d68522e600868e6b2efbb5e"
UDP_V0 = "00000102030405060708090a0b4c837348a0948c748c46908cb6ee7f6ad54f0bd599d1951562d9aa41b72f864b"
TCP_V1 = "0a0000002601000102030405060708090a0b4c837348a0948c748c3edbf2629433d892c3e3bc42d5c0806a"
UDP_FOO = "f403666f6f01000102030405060708090a0b4c837348a0948c748cb1a6ef54216fa0a620fe328d95b92c23"


def envelope(*keys: bytes, label: str = "", **switches: bool) -> Envelope:
    """With a nonce that is no chance."""
    keyring = Keyring(keys) if keys else None
    return Envelope(label=label, keyring=lambda: keyring, random_bytes=lambda size: NONCE[:size], **switches)


def seal_padded(content: bytes, key: bytes, nonce: bytes, associated: bytes) -> bytes:
    """Version 0, as a peer of old sends it."""
    padding_bytes = BLOCK_BYTES - len(content) % BLOCK_BYTES
    return (
        b"\x00"
        + nonce
        + AESGCM(key).encrypt(nonce, content + bytes((padding_bytes,)) * padding_bytes, associated)
    )


def test_packets_equal_the_reference_byte_for_byte() -> None:
    """Version 1, and a label, which the seal covers; version 0 with its padding is opened."""
    assert envelope(KEY).wrap_packet(NACK).hex() == UDP_V1
    assert seal_padded(NACK, KEY, NONCE, b"").hex() == UDP_V0
    assert envelope(KEY).unwrap_packet(bytes.fromhex(UDP_V0)) == NACK
    assert envelope(KEY, label="foo").wrap_packet(NACK).hex() == UDP_FOO
    assert envelope(label="foo").wrap_packet(NACK) == b"\xf4\x03foo" + NACK


def test_streams_equal_the_reference_byte_for_byte() -> None:
    """The header is part of what the seal covers; only the side that opens the connection says the label."""
    assert envelope(KEY).wrap_stream(NACK, opens=True).hex() == TCP_V1
    labelled = envelope(KEY, label="foo")
    assert labelled.wrap_stream(NACK, opens=True)[:5] == b"\xf4\x03foo"
    assert labelled.wrap_stream(NACK, opens=True)[5:] == labelled.wrap_stream(NACK, opens=False)
    assert labelled.wrap_stream(NACK, opens=False)[:5].hex() == TCP_V1[:10]
    assert labelled.wrap_stream(NACK, opens=False).hex() != TCP_V1


@pytest.mark.parametrize("size", [16, 24, 32])
@pytest.mark.parametrize("sealed", [seal, seal_padded])
def test_every_key_size_and_version_opens(
    size: int, sealed: Callable[[bytes, bytes, bytes, bytes], bytes]
) -> None:
    """AES-128, 192 and 256; any accepted key opens, not only the primary one."""
    key = os.urandom(size)
    for length in (0, 1, 15, 16, 17, 1400):
        content = random.Random(length).randbytes(length)
        blob = sealed(content, key, NONCE, b"label")
        assert open_blob(blob, Keyring((OTHER, key)), b"label") == content


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "key"),
        (b"\x02" + bytes(60), "key"),
        (bytes.fromhex(UDP_V1)[:28], "key"),
        (bytes.fromhex(UDP_V0)[:44], "key"),
        (NACK, "key"),
        (bytes.fromhex(UDP_V1)[:-1], "key"),
        (bytes.fromhex(UDP_V1)[:-1] + b"\x00", "key"),
        (b"\x00" + bytes.fromhex(UDP_V1)[1:], "key"),
    ],
)
def test_what_is_not_sealed_with_our_key_is_refused(blob: bytes, reason: str) -> None:
    """Empty, unknown version, too short for its version, plain, cut, changed, another version."""
    with pytest.raises(WireError) as caught:
        open_blob(blob, Keyring((KEY,)), b"")
    assert caught.value.reason == reason


@pytest.mark.parametrize("last", [0, 17, 255])
def test_false_padding_is_refused(last: int) -> None:
    """A holder of the key who pads wrongly: memberlist would crash on some of these."""
    content = bytes(15) + bytes((last,))
    blob = b"\x00" + seal(content, KEY, NONCE, b"")[1:]
    with pytest.raises(WireError) as caught:
        open_blob(blob, Keyring((KEY,)), b"")
    assert caught.value.reason == "format"


def test_packets_of_another_key_or_label_are_refused() -> None:
    """Wrong key, no key, wrong label, no label, and a label changed on the way although it is ours."""
    ours = envelope(KEY, label="fish")
    good = ours.wrap_packet(NACK)
    assert ours.unwrap_packet(good) == NACK
    for stranger, reason in (
        (envelope(OTHER, label="fish"), "key"),
        (envelope(label="fish"), "key"),
        (envelope(KEY, label="fowl"), "label"),
        (envelope(KEY), "label"),
        (envelope(), "label"),
    ):
        with pytest.raises(WireError) as caught:
            ours.unwrap_packet(stranger.wrap_packet(NACK))
        assert caught.value.reason == reason
    relabelled = label_header(b"fowl") + split_label(good)[1]
    with pytest.raises(WireError) as caught:
        envelope(KEY, label="fowl").unwrap_packet(relabelled)
    assert caught.value.reason == "key"
    with pytest.raises(WireError) as caught:
        envelope().unwrap_packet(good)
    assert caught.value.reason == "label"


@pytest.mark.parametrize("data", [b"\xf4", b"\xf4\x00", b"\xf4\x00abc", b"\xf4\x05abcd"])
def test_broken_labels_are_refused(data: bytes) -> None:
    """Cut off or empty."""
    with pytest.raises(WireError) as caught:
        envelope().unwrap_packet(data)
    assert caught.value.reason == "format"


def test_a_pool_changes_over_to_keys_with_the_two_switches() -> None:
    """First everybody accepts both and sends plain, then sends sealed, then accepts sealed alone."""
    plain = envelope()
    first = envelope(KEY, verify_incoming=False, verify_outgoing=False)
    second = envelope(KEY, verify_incoming=False)
    third = envelope(KEY)
    for sender, receiver in (
        (plain, first), (first, plain), (first, second), (second, first), (second, third), (third, second),
    ):  # fmt: skip
        assert receiver.unwrap_packet(sender.wrap_packet(NACK)) == NACK
        data = sender.wrap_stream(encode_stream(Ack(7)), opens=True)
        assert StreamDecoder(envelope=receiver, accepted=True).feed(data) == Ack(7)
    with pytest.raises(WireError):
        third.unwrap_packet(first.wrap_packet(NACK))


MESSAGES = (Ack(7), Ping(9, "node", HERE, "other"), RemoteError("no " * 500))


@pytest.mark.parametrize("piece", [1, 3, 100_000])
@pytest.mark.parametrize("keys", [(), (KEY,), (OTHER, KEY)], ids=len)
@pytest.mark.parametrize("label", ["", "fish"])
def test_streams_round_trip_in_any_pieces(piece: int, keys: tuple[bytes, ...], label: str) -> None:
    """Label, seal and compression, request and answer; nothing is left in memory afterwards."""
    sender, receiver = envelope(*keys, label=label), envelope(*reversed(keys), label=label)
    for message in MESSAGES:
        for opens in (True, False):
            data = sender.wrap_stream(encode_stream(message), opens=opens)
            decoder = StreamDecoder(envelope=receiver, accepted=opens)
            fed = [decoder.feed(data[at : at + piece]) for at in range(0, len(data), piece)]
            assert fed[-1] == message
            assert set(fed[:-1]) <= {None}
            assert not decoder._buffer


def test_streams_of_strangers_are_refused_before_their_bytes_are_kept() -> None:
    """Each at the first byte that shows it: label, plain text under a key, a seal without a key, the size."""
    for receiver, data, reason in (
        (envelope(label="fish"), b"\x09", "label"),
        (envelope(label="fish"), b"\xf4\x04fowl", "label"),
        (envelope(label="fish"), b"\xf4\x00", "format"),
        (envelope(KEY), b"\x09", "key"),
        (envelope(), b"\x0a\x00\x00\x00\xff", "key"),
        (envelope(KEY), b"\x0a\xff\xff\xff\xff", "limit"),
        (envelope(KEY), bytes.fromhex(TCP_V1)[:-1] + b"\x00", "key"),
        (envelope(KEY), envelope(KEY).wrap_stream(encode_stream(Ack(1))[:-2], opens=True), "short"),
        (envelope(KEY), envelope(KEY).wrap_stream(b"", opens=True), "short"),
    ):
        with pytest.raises(WireError) as caught:
            StreamDecoder(envelope=receiver, accepted=True).feed(data)
        assert caught.value.reason == reason, data


def test_an_answer_carries_no_label() -> None:
    """The asker does not expect one, and takes one for a message type that nobody knows."""
    labelled = envelope(label="fish")
    data = labelled.wrap_stream(encode_stream(Ack(1)), opens=True)
    with pytest.raises(WireError) as caught:
        StreamDecoder(envelope=labelled, accepted=False).feed(data)
    assert caught.value.reason == "type"


def test_keyring_rules() -> None:
    """Install adds, use makes primary, remove spares the primary one; each answers a new value."""
    ring = Keyring((KEY,))
    both = ring.install(OTHER)
    assert both.keys == (KEY, OTHER)
    assert both.install(OTHER) == both
    assert both.use(OTHER).keys == (OTHER, KEY)
    assert both.use(OTHER).remove(KEY) == Keyring((OTHER,))
    assert ring.remove(OTHER) == ring
    with pytest.raises(KeyringError, match="Requested key is not in the keyring"):
        ring.use(OTHER)
    with pytest.raises(KeyringError, match="Removing the primary key is not allowed"):
        both.remove(KEY)
    with pytest.raises(KeyringError, match="key size must be 16, 24 or 32 bytes"):
        ring.install(b"short")
    with pytest.raises(KeyringError, match="at most"):
        Keyring(bytes((number,)) * 16 for number in range(MAX_KEYS + 1))
    with pytest.raises(KeyringError, match="at least one"):
        Keyring(())


def test_keyring_file_is_serfs() -> None:
    """A list in base64, the primary key first; everything else is refused."""
    ring = Keyring((OTHER, KEY))
    assert Keyring.from_json(ring.to_json()) == ring
    assert Keyring.from_json(f'["{key_text(KEY)}"]').primary == KEY
    for text in ("", "{}", "[]", "[1]", '["a"]', "[" * 100_000, '["AAAA"]', "null"):
        with pytest.raises(KeyringError):
            Keyring.from_json(text)


def test_no_key_is_ever_shown() -> None:
    """Neither in a repr nor in an error about a key."""
    secret = key_text(KEY)
    assert secret not in repr(Keyring((KEY,)))
    assert fingerprint(KEY) in repr(Keyring((KEY,)))
    with pytest.raises(KeyringError) as caught:
        parse_key(secret[:-5])
    assert secret[:8] not in str(caught.value)
    assert caught.value.__cause__ is None or secret[:8] not in str(caught.value.__cause__)
    assert parse_key(f" {secret}\n") == KEY
