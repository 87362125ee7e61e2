"""TCP framing: push/pull as real agents write it, bytes in any pieces, and bounds."""

import pytest

from shoal.membership.wire.dialect import pack
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import (
    VSN,
    Ack,
    Endpoint,
    NodeState,
    Ping,
    PushPull,
    RemoteError,
    State,
    StreamMessage,
    User,
)
from shoal.membership.wire.packets import encode_compressed
from shoal.membership.wire.serf import SerfState, decode_state, encode_state
from shoal.membership.wire.streams import StreamDecoder, decode_stream, encode_stream

ALPHA = NodeState(
    "alpha", Endpoint(bytes((127, 0, 0, 1)), 17946), b"\xff\x81\xa4role\xa3web", 1, State.ALIVE, VSN
)

IDLE_SERF_STATE = (
    b"\x02\x86\xaaEventLTime\x01\xa6Events\xdc\x02\x00"
    + b"\xc0" * 512
    + b"\xa5LTime\x01\xabLeftMembers\x90\xaaQueryLTime\x01\xacStatusLTimes\x81\xa5alpha\x00"
)

MINIMAL_JOIN = bytes.fromhex(
    "0683a54e6f64657301ac5573657253746174654c656e49a44a6f696ec3"
    "87a44e616d65a3707931a441646472a47f000002a4506f7274cd4269a44d657461beff83a4726f6c65a6707974686f6e"
    "a46c616e67a3707933a5656d707479a0ab496e6361726e6174696f6e01a5537461746500a356736ea6010502020505"
    "0286a54c54696d6501ac5374617475734c54696d657381a370793100ab4c6566744d656d6265727390"
    "aa4576656e744c54696d6501a64576656e7473c0aa51756572794c54696d6501"
)


def test_reply_of_an_idle_agent() -> None:
    """The captured shape: 512 empty event slots after the nodes, with no wrapper around them."""
    assert len(IDLE_SERF_STATE) == 589
    reply = b"\x06" + pack({"Join": True, "Nodes": 1, "UserStateLen": 589})
    reply += bytes.fromhex("87a441646472a47f000001ab496e6361726e6174696f6e01a44d657461ab") + ALPHA.meta
    reply += bytes.fromhex("a44e616d65a5616c706861a4506f7274cd461aa5537461746500a356736ea6010502020505")
    decoded = decode_stream(reply + IDLE_SERF_STATE)
    assert decoded == PushPull(True, (ALPHA,), IDLE_SERF_STATE)
    assert encode_stream(decoded, compressed=False) == reply + IDLE_SERF_STATE
    assert decode_state(IDLE_SERF_STATE) == SerfState(1, {"alpha": 0}, (), 1, 1)


def test_minimal_join_request() -> None:
    """A request that a real agent let in; its keys come in another order."""
    decoded = decode_stream(MINIMAL_JOIN)
    assert isinstance(decoded, PushPull)
    assert decoded.join
    assert [node.name for node in decoded.nodes] == ["py1"]
    assert decoded.nodes[0].endpoint == Endpoint(bytes((127, 0, 0, 2)), 17001)
    assert decode_state(decoded.user_state) == SerfState(1, {"py1": 0}, (), 1, 1)


MESSAGES: list[StreamMessage] = [
    Ping(7, "alpha"),
    Ack(7),
    RemoteError("no"),
    User(b"\x03payload"),
    PushPull(False, (ALPHA,) * 100, encode_state(SerfState(5, {"alpha": 4}, ("beta",), 2, 3))),
]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_bytes_may_come_in_any_pieces(message: StreamMessage, compressed: bool) -> None:
    """The decoder says nothing until the last byte, whatever the cuts."""
    encoded = encode_stream(message, compressed=compressed)
    for piece in (1, 7, len(encoded)):
        decoder = StreamDecoder()
        for start in range(0, len(encoded) - piece, piece):
            assert decoder.feed(encoded[start : start + piece]) is None
        last = (len(encoded) - 1) // piece * piece
        assert decoder.feed(encoded[last:]) == message


def test_real_agents_compress_even_an_ack() -> None:
    """So do we, with the same bytes as the reference implementation accepted by an agent."""
    coded = "0982a4416c676f00a3427566b70005082a35a54c1c276f909c8212260f9b3761c8000b08"
    assert decode_stream(bytes.fromhex(coded)) == Ack(72)


def test_announced_length_beyond_the_limit_is_refused_at_once() -> None:
    """A header may promise gigabytes; nothing is waited for or allocated."""
    decoder = StreamDecoder(max_bytes=10_000)
    with pytest.raises(WireError) as caught:
        decoder.feed(b"\x09\x82\xa4Algo\x00\xa3Buf\xdb\x7f\xff\xff\xff")
    assert caught.value.reason == "limit"


def test_too_many_nodes_are_refused() -> None:
    """A count is bounded before anything is read for it."""
    with pytest.raises(WireError):
        decode_stream(b"\x06" + pack({"Join": False, "Nodes": 1 << 20, "UserStateLen": 0}))


def test_endless_stream_is_refused() -> None:
    """More bytes than any message has."""
    decoder = StreamDecoder(max_bytes=1000)
    decoder.feed(b"\x08\x81\xaaUserMsgLen\xcd\x03\x84")
    with pytest.raises(WireError) as caught:
        decoder.feed(bytes(1001))
    assert caught.value.reason == "limit"


def test_compressed_message_that_ends_early() -> None:
    """What is cut inside a compression will never be completed by more bytes."""
    plain = encode_stream(MESSAGES[-1], compressed=False)
    with pytest.raises(WireError) as caught:
        StreamDecoder().feed(encode_compressed(plain[:-1]))
    assert caught.value.reason == "short"
