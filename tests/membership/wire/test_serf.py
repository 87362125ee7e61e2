"""Serf's messages against captured bytes; tags and push/pull state."""

import pytest

from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import VSN, Endpoint
from shoal.membership.wire.serf import (
    ConflictAnswer,
    JoinIntent,
    LeaveIntent,
    Query,
    QueryResponse,
    Relay,
    SerfMessage,
    SerfState,
    UserEvent,
    decode_node_filter,
    decode_serf,
    decode_state,
    decode_tags,
    encode_conflict_answer,
    encode_serf,
    encode_state,
    encode_tags,
)

ALPHA = Endpoint(bytes((127, 0, 0, 1)), 17946)

CAPTURED: list[tuple[str, SerfMessage]] = [
    ("0182a54c54696d6501a44e6f6465a3707931", JoinIntent(1, "py1")),
    ("0083a54c54696d6502a44e6f6465a3707931a55072756e65c2", LeaveIntent(2, "py1")),
    (
        "0384a24343c3a54c54696d6501a44e616d65a66465706c6f79a75061796c6f6164a97061796c6f61642d31",
        UserEvent(1, "deploy", b"payload-1", True),
    ),
    (
        (
            "048ba441646472a47f000001a746696c74657273c0a5466c61677301a24944ce059e3459a54c54696d6501a44e616d65a6"
            "757074696d65a75061796c6f6164a2706ca4506f7274cd461aab52656c6179466163746f7200aa536f757263654e6f6465"
            "a5616c706861a754696d656f7574ce77359400"
        ),
        Query(1, 0x059E3459, ALPHA, "alpha", (), 1, 0, 2_000_000_000, "uptime", b"pl"),
    ),
    (
        "0585a5466c61677301a446726f6da5616c706861a24944ce2ae769d0a54c54696d6506a75061796c6f6164c0",
        QueryResponse(6, 0x2AE769D0, "alpha", 1, b""),
    ),
    (
        "0585a5466c61677300a446726f6da567616d6d61a24944ce7681443ea54c54696d6504a75061796c6f6164a975702d67616d6d610a",
        QueryResponse(4, 0x7681443E, "gamma", 0, b"up-gamma\n"),
    ),
    (
        "0982a8446573744164647283a24950a47f000001a4506f7274cd461aa45a6f6e65a0a8446573744e616d65a5616c7068610585a5",
        Relay(ALPHA, "alpha", bytes.fromhex("0585a5")),
    ),
]


@pytest.mark.parametrize(("captured", "message"), CAPTURED, ids=lambda value: type(value).__name__)
def test_captured_messages(captured: str, message: SerfMessage) -> None:
    """Both ways, byte for byte."""
    assert decode_serf(bytes.fromhex(captured)) == message
    assert encode_serf(message).hex() == captured


def test_unknown_type_is_its_own_reason() -> None:
    """Callers skip what a newer Serf may send."""
    with pytest.raises(WireError) as caught:
        decode_serf(b"\x2a\x80")
    assert caught.value.reason == "type"


def test_tags_as_captured() -> None:
    """ff and a map of raw text; keys sorted."""
    meta = bytes.fromhex("ff82a26463a465617374a4726f6c65a3776562")
    assert encode_tags({"role": "web", "dc": "east"}) == meta
    assert decode_tags(meta) == {"role": "web", "dc": "east"}
    assert encode_tags({}) == b"\xff\x80"


def test_tags_survive_text_of_all_kinds() -> None:
    """UTF-8, spaces, equal signs, empty and long values (which need raw 16)."""
    tags = {"a": "", "b c": "x=y", "ü": "ß" * 20, "long": "v" * 200}
    assert decode_tags(encode_tags(tags)) == tags


def test_tags_limit_is_exact() -> None:
    """512 bytes with the magic byte; agents on the other side do not check, so the sender must."""
    fits = {"k": "v" * (512 - 1 - 1 - 2 - 3)}
    assert len(encode_tags(fits)) == 512
    with pytest.raises(ValueError, match="513 bytes"):
        encode_tags({"k": fits["k"] + "v"})


@pytest.mark.parametrize("meta", [b"", b"web"])
def test_meta_without_magic_is_the_role(meta: bytes) -> None:
    """Serf protocol 2."""
    assert decode_tags(meta) == {"role": meta.decode()}


@pytest.mark.parametrize("meta", [b"\xff", b"\xff\x93\x01\x02\x03", b"\xff\x81\xa1k\x01", b"\xff\x81\xa1k"])
def test_bad_tags_raise_wire_error(meta: bytes) -> None:
    """One value that is not text loses them all, as in Serf."""
    with pytest.raises(WireError):
        decode_tags(meta)


def test_state_round_trip_with_events() -> None:
    """Events of one Lamport time share a slot of the ring."""
    events = (UserEvent(4, "a", b""), UserEvent(4, "b", b"x"), UserEvent(5, "c", b"y"))
    state = SerfState(9, {"n1": 3, "n2": 0}, ("n2",), 6, 1, events)
    assert decode_state(encode_state(state)) == state


def test_conflict_answer_shape() -> None:
    """A member struct with the status as a number; nil when the name is unknown."""
    answer = encode_conflict_answer(ConflictAnswer("beta", ALPHA, {}, 1, VSN))
    assert answer.startswith(b"\x06\x8b\xa4Addr\xa4\x7f\x00\x00\x01\xabDelegateCur\x05")
    assert b"\xa6Status\x01\xa4Tags\x80" in answer
    assert encode_conflict_answer(None) == b"\x06\xc0"


def test_node_filter_as_captured() -> None:
    """Type 0 and an array of names."""
    assert decode_node_filter(b"\x00\x91\xa3w63") == ("w63",)
