"""Every gossip decoder accepts or raises its one error, within bounds, whatever the bytes."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.membership.serf_agent.rpc_wire import (
    ValueDecoder,
    decode_answer,
    decode_header,
    decode_keys,
    decode_members,
    decode_record,
    decode_stats,
)
from shoal.membership.wire.dialect import MAX_DEPTH, pack_typed, unpack, value_end
from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import ShortError, WireError
from shoal.membership.wire.key_messages import (
    KeyAnswer,
    decode_key_answer,
    decode_key_request,
    encode_key_answer,
    encode_key_request,
)
from shoal.membership.wire.keyring import Keyring, key_text
from shoal.membership.wire.lzw import decompress
from shoal.membership.wire.messages import (
    VSN,
    Ack,
    Alive,
    Endpoint,
    NodeState,
    Ping,
    PushPull,
    State,
    decode_message,
    encode_message,
)
from shoal.membership.wire.packets import decode_packet, encode_compressed, encode_packet
from shoal.membership.wire.serf import (
    SerfState,
    UserEvent,
    decode_node_filter,
    decode_serf,
    decode_state,
    decode_tag_filter,
    decode_tags,
    encode_serf,
    encode_state,
    encode_tag_filter,
    encode_tags,
)
from shoal.membership.wire.streams import StreamDecoder, decode_stream, encode_stream
from tests.membership.work import lines_at_most

HERE = Endpoint(bytes((127, 0, 0, 1)), 7946)
ALIVE = encode_message(Alive(1, "node", HERE, encode_tags({"role": "web"}), VSN))
STATE = encode_state(SerfState(4, {"a": 1, "b": 2}, ("b",), 3, 2, (UserEvent(2, "e", b"p"),)))
RECORD = NodeState("node", HERE, encode_tags({"role": "web"}), 1, State.ALIVE, VSN)
KEYRING = Keyring((bytes(32), bytes(range(32))))
SEALED = Envelope(label="fish", keyring=lambda: KEYRING, random_bytes=random.Random(1).randbytes)
RELAXED = Envelope(
    label="fish", keyring=lambda: KEYRING, verify_incoming=False, random_bytes=random.Random(1).randbytes
)
LABELLED = Envelope(label="fish", random_bytes=random.Random(1).randbytes)
PACKET = encode_packet((ALIVE, ALIVE))
EXCHANGE = encode_stream(PushPull(True, (RECORD,), STATE))

RPC_MEMBER = {"Name": "n", "Addr": bytes(4), "Port": 1, "Tags": {"role": "web"}, "Status": "alive"}
RPC_RECORD = pack_typed({"Event": "member-join", "Members": [RPC_MEMBER]})
RPC_ANSWER = pack_typed({"Type": "response", "From": "n", "Payload": b"x", "Error": "", "Seq": 1})
RPC_KEYS = pack_typed({"Messages": {"n": "no"}, "Keys": {"k": 1}, "NumNodes": 2, "NumErr": 1, "NumResp": 2})


def each(decode: Callable[[Any], object]) -> Callable[[bytes], object]:
    """A decoder of the RPC over all values of a stream."""
    return lambda data: [decode(value) for value in ValueDecoder().feed(data)]


DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "message": (decode_message, ALIVE),
    "packet": (decode_packet, PACKET),
    "compressed": (decode_packet, encode_compressed(encode_packet((ALIVE,) * 8))),
    "stream": (decode_stream, encode_stream(PushPull(True, (RECORD,), STATE), compressed=False)),
    "stream-compressed": (decode_stream, encode_stream(PushPull(True, (RECORD,), STATE))),
    "incremental": (
        lambda data: StreamDecoder().feed(data),
        encode_stream(Ping(1, "node"), compressed=False),
    ),
    "sealed": (
        lambda data: decode_packet(SEALED.unwrap_packet(data)),
        SEALED.wrap_packet(PACKET),
    ),
    "relaxed": (
        lambda data: decode_packet(RELAXED.unwrap_packet(data)),
        LABELLED.wrap_packet(PACKET),
    ),
    "labelled": (
        lambda data: decode_packet(LABELLED.unwrap_packet(data)),
        LABELLED.wrap_packet(PACKET),
    ),
    "sealed-stream": (
        lambda data: StreamDecoder(envelope=SEALED, accepted=True).feed(data),
        SEALED.wrap_stream(EXCHANGE, opens=True),
    ),
    "sealed-answer": (
        lambda data: StreamDecoder(envelope=SEALED, accepted=False).feed(data),
        SEALED.wrap_stream(EXCHANGE, opens=False),
    ),
    "labelled-stream": (
        lambda data: StreamDecoder(envelope=LABELLED, accepted=True).feed(data),
        LABELLED.wrap_stream(EXCHANGE, opens=True),
    ),
    "serf": (decode_serf, encode_serf(UserEvent(2, "event", b"payload"))),
    "state": (decode_state, STATE),
    "tags": (decode_tags, encode_tags({"role": "web", "dc": "east"})),
    "filter": (decode_node_filter, b"\x00\x92\xa1a\xa1b"),
    "rpc-header": (each(decode_header), RPC_ANSWER),
    "rpc-members": (each(decode_members), RPC_RECORD),
    "rpc-record": (each(decode_record), RPC_RECORD),
    "rpc-answer": (each(decode_answer), RPC_ANSWER),
    "rpc-keys": (each(lambda value: decode_keys(value, "")), RPC_KEYS),
    "rpc-stats": (each(decode_stats), pack_typed({"agent": {"name": "n"}})),
    "tag-filter": (decode_tag_filter, encode_tag_filter("role", "web.*")),
    "key-request": (decode_key_request, encode_key_request(bytes(32))),
    "key-answer": (
        decode_key_answer,
        encode_key_answer(KeyAnswer(True, "text", (key_text(bytes(32)),), key_text(bytes(32)))),
    ),
    "lzw": (lambda data: decompress(data, 10_000), bytes.fromhex("00d19461c3e60d0881040d222c1810")),
}


def accepts_or_refuses(decode: Callable[[bytes], object], data: bytes) -> None:
    """The law of every decoder."""
    try:
        decode(data)
    except WireError:
        return


@pytest.mark.parametrize("name", DECODERS)
def test_mutations_of_good_bytes(name: str) -> None:
    """Bits flipped, bytes cut, doubled, inserted: the neighbourhood of real messages, where bugs live."""
    decode, good = DECODERS[name]
    rng = random.Random(name)
    for _ in range(1_500):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0 if data and place < len(data):
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place:]
                case 2:
                    data.insert(place, rng.choice((0, 0x7F, 0xC0, 0xC4, 0xDB, 0xDD, 0xDF, 0xFF)))
                case _:
                    data[place:place] = data[: rng.randrange(20)]
        accepts_or_refuses(decode, bytes(data))


@given(st.binary(max_size=200), st.sampled_from(sorted(DECODERS)))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_arbitrary_bytes(data: bytes, name: str) -> None:
    """No structure at all, with each first byte a decoder knows."""
    decode, good = DECODERS[name]
    accepts_or_refuses(decode, data)
    accepts_or_refuses(decode, good[:1] + data)


@pytest.mark.parametrize(
    "opener", [b"\x91", b"\x81\xa1k", b"\xdd\x00\x00\x00\x01", b"\xdf\x00\x00\x00\x01\xa1k"]
)
def test_a_million_nested_containers_are_refused_early(opener: bytes) -> None:
    """By depth, in no time and without a stack."""
    with lines_at_most(1_000), pytest.raises(WireError) as caught:
        unpack(opener * 1_000_000)
    assert caught.value.reason == "limit"


def test_depth_limit_is_exact() -> None:
    """One container more than allowed."""
    assert unpack(b"\x91" * MAX_DEPTH + b"\xc0")
    with pytest.raises(WireError):
        unpack(b"\x91" * (MAX_DEPTH + 1) + b"\xc0")


@pytest.mark.parametrize(
    "claim",
    [b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"],
)
def test_claimed_lengths_are_never_allocated(claim: bytes) -> None:
    """Gigabytes promised by five bytes."""
    with pytest.raises(WireError):
        unpack(claim + b"\x00" * 10)


def test_containers_of_full_length_at_every_depth_are_short() -> None:
    """Each level claims what only the packet's rest could hold: walked before anything is allocated."""
    data = b"\xdc\xff\xff" * MAX_DEPTH + b"\xc0" * 60_000
    with pytest.raises(ShortError):
        unpack(data)


@pytest.mark.parametrize("cut", range(1, len(ALIVE)))
def test_every_prefix_is_short(cut: int) -> None:
    """The walker says that more bytes are needed, never that the value is wrong."""
    if cut == 1:
        assert value_end(ALIVE, 1) == len(ALIVE)
        return
    with pytest.raises(ShortError):
        value_end(ALIVE[:cut], 1)


@given(st.binary(max_size=3000))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_acks_round_trip_with_any_payload(payload: bytes) -> None:
    """Encode, decode, equal."""
    assert decode_message(encode_message(Ack(7, payload))) == Ack(7, payload)
