"""Which runs make up a view: one small value, kept in two files. Pure.

The value is written whole into `manifest.a`, which is synced, then into `manifest.b`. So at any crash one
file is whole, and the newer one that verifies counts. The runs that it names are synced before it, and a run
that it names no more is removed after both files have been written.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final, NamedTuple

import crc32c

from shoal.agent.partition.plan import ViewKind
from shoal.agent.views.run_format import RunFormatError, RunName
from shoal.format.batch import LogIndex, Offset, Term

MANIFEST_FILES: Final = ("manifest.a", "manifest.b")
MAX_RUNS: Final = 4_096
"""Of one view. Merges keep them below some dozens; each costs an open file's worth of memory and a look."""

_MAGIC: Final = b"SHVM"
_VERSION: Final = 1
# magic, crc32c of all behind it, version, kind, reserved, sequence, applied index, term, offset, digest, runs
_HEAD: Final = struct.Struct("<4sIHBBQQQQII")
_CHECKED_FROM: Final = 8
# first index, last index, number, level, end offset, rows, bytes
_RUN: Final = struct.Struct("<QQIIQQQ")
MAX_MANIFEST_BYTES: Final = _HEAD.size + MAX_RUNS * _RUN.size


class Reached(NamedTuple):
    """How far a view goes: its last entry, and the offset behind that. `digest`: of every batch that went
    into it; two replicas with the same `index` must have the same."""

    index: LogIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks for here
    term: Term
    offset: Offset
    digest: int


NOTHING: Final = Reached(LogIndex(0), Term(0), Offset(0), 0)


class RunEntry(NamedTuple):
    """One run. `level`: how many merges deep; `end_offset`: behind the records of its entries; `size_bytes`:
    of its file."""

    name: RunName
    level: int
    end_offset: Offset
    rows: int
    size_bytes: int


class Manifest(NamedTuple):
    """`runs`: oldest first, each of the entries behind the one before, up to `applied`. `sequence`: greater
    than that of each manifest before, and than the number of each run."""

    kind: ViewKind
    sequence: int
    applied: Reached
    runs: tuple[RunEntry, ...]


def encode_manifest(manifest: Manifest, seed: int) -> bytes:
    """`seed`: of the log's identity."""
    assert len(manifest.runs) <= MAX_RUNS
    runs = b"".join(_RUN.pack(*run.name, *run[1:]) for run in manifest.runs)
    fields = (_VERSION, manifest.kind, 0, manifest.sequence, *manifest.applied, len(manifest.runs))
    checked = _HEAD.pack(_MAGIC, 0, *fields)[_CHECKED_FROM:] + runs
    checksum = crc32c.crc32c(checked, seed)
    return _HEAD.pack(_MAGIC, checksum, *fields) + runs


def decode_manifest(data: bytes, seed: int) -> Manifest:
    """Bytes behind it are passed over: a shorter manifest is written over a longer one. Raises
    RunFormatError."""
    if len(data) < _HEAD.size:
        raise RunFormatError("the manifest is too short")
    magic, checksum, version, kind, reserved, sequence, *applied, count = _HEAD.unpack_from(data)
    end = _HEAD.size + count * _RUN.size
    if magic != _MAGIC or count > MAX_RUNS or len(data) < end:
        raise RunFormatError("this is no manifest of a view")
    if crc32c.crc32c(data[_CHECKED_FROM:end], seed) != checksum:
        raise RunFormatError("the manifest does not verify")
    if version != _VERSION or reserved or kind not in tuple(ViewKind):
        raise RunFormatError(f"a manifest of version {version}, this code knows {_VERSION}")
    index, term, offset, digest = applied
    runs = []
    for first, last, number, level, end_offset, rows, size_bytes in _RUN.iter_unpack(data[_HEAD.size : end]):
        name = RunName(LogIndex(first), LogIndex(last), number)
        runs.append(RunEntry(name, level, Offset(end_offset), rows, size_bytes))
    reached = Reached(LogIndex(index), Term(term), Offset(offset), digest)
    manifest = Manifest(ViewKind(kind), sequence, reached, tuple(runs))
    if not follows(manifest):
        raise RunFormatError("the manifest's runs do not follow each other")
    return manifest


def follows(manifest: Manifest) -> bool:
    """Whether the runs are of entries behind each other, and none is of a later manifest."""
    names = [run.name for run in manifest.runs]
    offsets = [run.end_offset for run in manifest.runs] + [manifest.applied.offset]
    apart = all(older.last_index < newer.first_index for older, newer in pairwise(names))
    whole = all(1 <= name.first_index <= name.last_index <= manifest.applied.index for name in names)
    apart = apart and all(older <= newer for older, newer in pairwise(offsets))
    return apart and whole and all(name.number <= manifest.sequence for name in names)
