"""The bytes of runs and manifests: written and read again, and hostile ones refused with one error."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.partition.plan import ViewKind
from shoal.agent.views.manifest import (
    NOTHING,
    Manifest,
    Reached,
    RunEntry,
    decode_manifest,
    encode_manifest,
)
from shoal.agent.views.run_format import (
    TAIL_BYTES,
    RunChunk,
    RunFormatError,
    RunIndex,
    RunName,
    RunTail,
    decode_index,
    decode_tail,
    encode_tail,
    parse_run_name,
    place_key,
    place_of,
)
from shoal.format.batch import LogIndex, Offset, Term

SEED = 7
TAIL = RunTail(ViewKind.TIMER, LogIndex(3), LogIndex(90), 1_000, 5_000, 240, 16, 11, 12)


def index_of(keys: list[bytes]) -> RunIndex:
    """Chunks of these keys, one behind the other."""
    chunks = [
        RunChunk(key, 100 + 50 * number, 40, number, number + 1) for number, key in enumerate(sorted(keys))
    ]
    return RunIndex(chunks)


def manifest_of(runs: int) -> Manifest:
    """Runs of ten entries each."""
    entries = tuple(
        RunEntry(
            RunName(LogIndex(10 * number + 1), LogIndex(10 * number + 10), number), 0, Offset(number), 5, 900
        )
        for number in range(runs)
    )
    applied = Reached(LogIndex(10 * runs), Term(4), Offset(runs), 99)
    return Manifest(ViewKind.TIMER, runs, applied, entries)


@given(st.lists(st.binary(max_size=40), unique=True, max_size=30))
def test_an_index_is_read_as_it_was_written(keys: list[bytes]) -> None:
    """With every chunk, and found by any key."""
    index = index_of(keys)
    again = decode_index(index.to_bytes())
    assert [again.chunk(number) for number in range(len(again))] == [
        index.chunk(number) for number in range(len(index))
    ]
    assert again.rows == sum(number + 1 for number in range(len(keys)))
    for key in [*keys, b"", b"\xff" * 41]:
        before = [other for other in sorted(keys) if other <= key]
        assert again.holding(key) == (len(before) - 1 if before else None)
        assert again.reaching(key) == sum(other < key for other in keys)


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_keys_of_timers_stand_as_their_places(
    due: int, offset: int, other_due: int, other_offset: int
) -> None:
    """Bytes compare as (due, offset) does."""
    one, other = place_key(due, offset), place_key(other_due, other_offset)
    assert (one < other) == ((due, offset) < (other_due, other_offset))
    assert place_of(one) == (due, offset)


def test_tails_and_manifests_are_read_as_they_were_written() -> None:
    """Also a manifest that a longer one lies behind."""
    assert decode_tail(encode_tail(TAIL, SEED), SEED) == TAIL
    assert TAIL.file_bytes == 5_000 + 240 + 16 + TAIL_BYTES
    for runs in (0, 1, 30):
        data = encode_manifest(manifest_of(runs), SEED)
        assert decode_manifest(data, SEED) == manifest_of(runs)
        assert decode_manifest(data + bytes(100), SEED) == manifest_of(runs)
    empty = Manifest(ViewKind.TABLE, 0, NOTHING, ())
    assert decode_manifest(encode_manifest(empty, SEED), SEED) == empty


@pytest.mark.parametrize("seed", range(3))
def test_other_bytes_are_refused_with_one_error(seed: int) -> None:
    """Every truncation, any flipped bit of what has a checksum, and another log's bytes."""
    rng = random.Random(seed)
    tail, manifest = encode_tail(TAIL, SEED), encode_manifest(manifest_of(3), SEED)
    for data, decode in ((tail, decode_tail), (manifest, decode_manifest)):
        for length in range(len(data)):
            with pytest.raises(RunFormatError):
                decode(data[:length], SEED)
        with pytest.raises(RunFormatError):
            decode(data, SEED + 1)
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= 1 << rng.randrange(8)
            with pytest.raises(RunFormatError):
                decode(bytes(flipped), SEED)
    index = index_of([b"a", b"bb", b"ccc"]).to_bytes()
    whole = {len(index_of(keys).to_bytes()) for keys in ([], [b"a"], [b"a", b"bb"])}
    for length in set(range(len(index))) - whole:
        with pytest.raises(RunFormatError):
            decode_index(index[:length])
    for _ in range(300):
        noise = bytes(rng.choice(index) if rng.random() < 0.9 else rng.randrange(256) for _ in index)
        try:
            decode_index(noise)
        except RunFormatError:
            continue


def test_chunks_out_of_order_are_refused() -> None:
    """In keys or in the file, or without rows."""
    for chunks in (
        [RunChunk(b"b", 0, 8, 0, 1), RunChunk(b"a", 8, 8, 0, 1)],
        [RunChunk(b"a", 8, 8, 0, 1), RunChunk(b"b", 8, 8, 0, 1)],
        [RunChunk(b"a", 0, 8, 0, 0)],
        [RunChunk(b"a", 0, 0, 0, 1)],
    ):
        with pytest.raises(RunFormatError):
            decode_index(RunIndex(chunks).to_bytes())


def test_runs_that_do_not_follow_each_other_are_refused() -> None:
    """Two of the same entries, one of a later manifest, one behind what was applied."""
    whole = manifest_of(3)
    first, second, third = whole.runs
    for runs in (
        (second, first, third),
        (first, first),
        (first, second._replace(name=second.name._replace(first_index=LogIndex(5)))),
        (first._replace(name=first.name._replace(number=4)),),
        (first._replace(end_offset=Offset(9)), second),
        (*whole.runs, third._replace(name=RunName(LogIndex(31), LogIndex(40), 3))),
    ):
        with pytest.raises(RunFormatError):
            decode_manifest(encode_manifest(whole._replace(runs=runs), SEED), SEED)


def test_names_of_files() -> None:
    """As they are made, and no others."""
    name = RunName(LogIndex(1), LogIndex(12_345), 678)
    assert parse_run_name(name.file) == name
    for other in ("manifest.a", name.file[1:], name.file + ".new", name.file.replace("-", "_"), ""):
        assert parse_run_name(other) is None
    assert parse_run_name(RunName(LogIndex(9), LogIndex(8), 1).file) is None
    assert parse_run_name(RunName(LogIndex(0), LogIndex(8), 1).file) is None
