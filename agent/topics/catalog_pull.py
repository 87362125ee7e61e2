"""A copy of the catalog's state, taken from a peer piece by piece.

Law of this file: pure. A state of any size is taken in pieces that a link carries beside everything else; all
pieces are of one version, which the peer keeps encoded while somebody takes it. When it cannot, it begins
again with a newer one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shoal.agent.durable.catalog_version import VERSION_BYTES, CatalogVersion, version_from_bytes
from shoal.agent.topics.catalog import MAX_READ_BYTES, CatalogError

PIECE_BYTES = 1 << 20
MAX_BEGINNINGS = 4  # of one copy: whose peer has news each time asks again a moment later
_POSITION = struct.Struct("<Q")
_QUESTION_BYTES = 2 * VERSION_BYTES + _POSITION.size
_HEAD_BYTES = VERSION_BYTES + _POSITION.size


@dataclass(frozen=True, slots=True)
class CatalogRequest:
    """mine: what the asker has. taking, position: the version of which it has so many bytes already."""

    mine: CatalogVersion
    taking: CatalogVersion
    position: int

    def to_bytes(self) -> bytes:
        """40 bytes."""
        return self.mine.to_bytes() + self.taking.to_bytes() + _POSITION.pack(self.position)


@dataclass(frozen=True, slots=True)
class Piece:
    """Of a state of `total` bytes in all."""

    version: CatalogVersion
    total: int
    data: bytes

    def to_bytes(self) -> bytes:
        """24 bytes and the data."""
        return self.version.to_bytes() + _POSITION.pack(self.total) + self.data


def question_from_bytes(data: bytes) -> CatalogRequest | None:
    """None for anything to_bytes() did not write."""
    if len(data) != _QUESTION_BYTES:
        return None
    mine = version_from_bytes(data[:VERSION_BYTES])
    taking = version_from_bytes(data[VERSION_BYTES : 2 * VERSION_BYTES])
    position: int = _POSITION.unpack_from(data, 2 * VERSION_BYTES)[0]
    return None if mine is None or taking is None else CatalogRequest(mine, taking, position)


def piece_from_bytes(data: bytes) -> Piece:
    """Raises CatalogError, and nothing else."""
    version = version_from_bytes(data[:VERSION_BYTES])
    if version is None or len(data) <= _HEAD_BYTES:
        raise CatalogError(f"no piece of a catalog, {len(data)} bytes")
    total: int = _POSITION.unpack_from(data, VERSION_BYTES)[0]
    if not len(data) - _HEAD_BYTES <= total <= MAX_READ_BYTES:
        raise CatalogError(f"a piece of a catalog of {total} bytes")
    return Piece(version, total, data[_HEAD_BYTES:])


class Copy:
    """One copy under way. Ask question() of the peer, add() what it answers, until state() is there."""

    def __init__(self, mine: CatalogVersion) -> None:
        self._mine = mine
        self._taking = mine
        self._data = bytearray()
        self._total: int | None = None
        self._beginnings = 0

    def question(self) -> bytes:
        return CatalogRequest(self._mine, self._taking, len(self._data)).to_bytes()

    def add(self, answer: bytes) -> None:
        """Raises CatalogError when it is no answer, or the peer began again too often."""
        piece = piece_from_bytes(answer)
        if piece.version != self._taking or self._total != piece.total:
            self._beginnings += 1
            if self._beginnings > MAX_BEGINNINGS:
                raise CatalogError("it changes faster than it is taken")
            self._data.clear()
            self._taking, self._total = piece.version, piece.total
        self._data += piece.data
        if len(self._data) > piece.total:
            raise CatalogError("more pieces than the whole")

    def state(self) -> bytes | None:
        """All of it; None while pieces are missing."""
        return bytes(self._data) if len(self._data) == self._total else None
