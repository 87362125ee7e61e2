"""Frames between agents: round trips, pieces, hostile bytes."""

from functools import partial
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.durable.ids import GroupId
from shoal.agent.peers.frames import (
    MAX_CONTROL_PAYLOAD_BYTES,
    MAX_STOPPED_GROUPS,
    FrameReader,
    Hello,
    LinkKind,
    PeerWireError,
    RawFrame,
    decode_append,
    decode_group_messages,
    decode_request,
    decode_stopped,
    encode_append,
    encode_group_messages,
    encode_request,
    encode_stopped,
    frame_head,
)

GROUP = GroupId(b"g" * 16, 7)
groups = st.builds(GroupId, st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1))


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=10), st.integers(1, 40))
def test_frames_survive_any_fragmentation(frames: list[tuple[int, bytes]], piece: int) -> None:
    """Whatever pieces the stream arrives in, the frames are the same."""
    stream = b"".join(frame_head(kind, len(payload)) + payload for kind, payload in frames)
    reader = FrameReader(64)
    seen: list[RawFrame] = []
    for start in range(0, len(stream), piece):
        reader.feed(stream[start : start + piece])
        seen += list(iter(reader.take, None))
    assert seen == frames


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), min_size=1, max_size=6),
    st.lists(st.integers(1, 200), max_size=6),
    st.integers(20, 60),
)
def test_a_frame_that_comes_whole_is_the_same_in_one_step(
    frames: list[tuple[int, bytes]], pieces: list[int], bound: int
) -> None:
    """`only` and what feed and take make of it, whatever was left from before: the same frames, and the same
    refusal of one over the bound."""
    stream = b"".join(frame_head(kind, len(payload)) + payload for kind, payload in frames)
    cuts = sorted({0, len(stream), *(cut for cut in pieces if cut < len(stream))})
    cuts = sorted({*cuts, *accumulate(len(payload) + 5 for _, payload in frames[:3])})
    seen: tuple[list[RawFrame], list[RawFrame]] = ([], [])
    readers = FrameReader(bound), FrameReader(bound)
    refused = [False, False]
    for start, end in pairwise(cuts):
        for place, reader in enumerate(readers):
            try:
                only = reader.only(stream[start:end]) if place == 0 and not refused[0] else None
                if only is not None:
                    seen[0].append(only)
                elif not refused[place]:
                    reader.feed(stream[start:end])
                    while (frame := reader.take()) is not None:
                        seen[place].append(frame)
            except PeerWireError:
                refused[place] = True
    assert seen[0] == seen[1]
    assert refused[0] == refused[1] == any(len(payload) > bound for _, payload in frames)


def test_a_frame_over_the_bound_is_refused_by_its_head() -> None:
    """Nothing of it is awaited."""
    reader = FrameReader(10)
    reader.feed(frame_head(1, 10) + bytes(10) + frame_head(1, 11))
    assert reader.take() == RawFrame(1, bytes(10))
    with pytest.raises(PeerWireError):
        reader.take()


def test_a_greeting_changes_the_bound_for_the_frames_that_came_with_it() -> None:
    """A peer that has a thousand groups begins to speak in the same segment as its greeting."""
    reader = FrameReader(10)
    reader.feed(frame_head(1, 10) + bytes(10) + frame_head(2, 600) + bytes(600))
    assert reader.take() == RawFrame(1, bytes(10))
    reader.limit(1_000)
    assert reader.take() == RawFrame(2, bytes(600))
    assert reader.take() is None


@given(st.lists(st.tuples(groups, st.binary(max_size=100)), max_size=20))
def test_group_messages_round_trip(messages: list[tuple[GroupId, bytes]]) -> None:
    """All messages of a turn in one frame, in order."""
    payloads = encode_group_messages(messages)
    assert len(payloads) == min(1, len(messages))
    assert [item for payload in payloads for item in decode_group_messages(payload)] == messages


def test_group_messages_are_cut_at_the_bound() -> None:
    """A turn with more than a frame holds becomes several, none too long."""
    messages = [(GROUP, bytes(300_000)) for _ in range(10)]
    payloads = encode_group_messages(messages)
    assert len(payloads) > 1
    assert max(map(len, payloads)) <= MAX_CONTROL_PAYLOAD_BYTES
    assert [item for payload in payloads for item in decode_group_messages(payload)] == messages


def test_append_and_request_round_trip() -> None:
    """The position of the frames, correlation and type come back."""
    payload = b"".join(encode_append(GROUP, b"message", [b"frame1", b"frame2"]))
    group, message, position = decode_append(payload)
    assert (group, message, payload[position:]) == (GROUP, b"message", b"frame1frame2")
    assert decode_request(b"".join(encode_request(2**63, 200, b"question"))) == (2**63, 200, b"question")


def test_hello_round_trip() -> None:
    """Ids are hexadecimal outside and bytes inside."""
    hello = Hello(LinkKind.BULK, b"c" * 16, "ab" * 16, "cd" * 16, b"12345678")
    assert Hello.from_bytes(hello.to_bytes(1), 1) == hello
    with pytest.raises(PeerWireError, match="link version 2, where the two sides chose 1"):
        Hello.from_bytes(hello.to_bytes(2), 1)


@given(st.lists(groups, max_size=MAX_STOPPED_GROUPS), st.binary(max_size=9))
def test_stopped_groups_round_trip(stopped: list[GroupId], more: bytes) -> None:
    """What a newer agent says behind them is passed over, where there are any."""
    assert decode_stopped(encode_stopped(stopped)) == stopped
    assert decode_stopped(encode_stopped([GROUP, *stopped][:MAX_STOPPED_GROUPS]) + more)[0] == GROUP


def test_more_stopped_groups_than_a_frame_may_name_are_refused() -> None:
    """The bound holds for what arrives too."""
    with pytest.raises(PeerWireError):
        decode_stopped((MAX_STOPPED_GROUPS + 1).to_bytes(2, "little") + bytes(100 * MAX_STOPPED_GROUPS))


@given(st.binary(max_size=120))
def test_hostile_payloads_raise_one_error(data: bytes) -> None:
    """Every decoder accepts or raises PeerWireError."""
    good = Hello(LinkKind.BULK, b"c" * 16, "ab" * 16, "cd" * 16, b"12345678").to_bytes(1)
    for decode, payload in (
        (partial(Hello.from_bytes, agreed_version=1), data),
        (partial(Hello.from_bytes, agreed_version=1), data[: len(good)] + good[len(data) :]),
        (decode_group_messages, data),
        (decode_append, data),
        (decode_request, data),
        (decode_stopped, data),
    ):
        try:
            decode(payload)
        except PeerWireError:
            continue
