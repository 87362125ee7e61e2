"""How far a state of the catalog goes, and of which lineage it is.

Law of this file: pure. A catalog that was recovered by force goes on from one survivor's log, without the
commands that only others had: it is another lineage, with its own epoch. Numbers of commands order states
within one epoch alone, and a topic that only an older epoch knows was not deleted (safety 4). So versions are
always compared whole.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

EPOCH_RANDOM_BITS = 32
MAX_NUMBER = 2**63
_VERSION = struct.Struct("<QQ")
VERSION_BYTES = _VERSION.size
_TEXT = re.compile("(?:([0-9a-f]{1,16})[.])?([0-9]{1,19})", re.ASCII)


class CatalogVersion(NamedTuple):
    """Ordered by epoch first. epoch: 0 before a recovery by force; then their count above 32 random bits, so
    that survivors recovered apart have different epochs. offset: of the first command that the state
    lacks."""

    epoch: int
    offset: int

    def to_bytes(self) -> bytes:
        """16 bytes, for frames."""
        return _VERSION.pack(self.epoch, self.offset)

    def __str__(self) -> str:
        """For tags and logs: OFFSET, or EPOCH.OFFSET with the epoch in hexadecimal digits."""
        return str(self.offset) if self.epoch == 0 else f"{self.epoch:x}.{self.offset}"


NO_VERSION = CatalogVersion(0, 0)


def recoveries(epoch: int) -> int:
    """How many recoveries by force led to that epoch of the catalog."""
    return epoch >> EPOCH_RANDOM_BITS


def epoch_of(count: int, random_bits: int) -> int:
    """The epoch that the count-th recovery by force begins."""
    assert 0 <= random_bits < 1 << EPOCH_RANDOM_BITS
    return count << EPOCH_RANDOM_BITS | random_bits


def version_from_bytes(data: bytes) -> CatalogVersion | None:
    """None for anything to_bytes() did not write."""
    if len(data) != VERSION_BYTES:
        return None
    version = CatalogVersion(*_VERSION.unpack(data))
    return version if max(version) < MAX_NUMBER else None


def version_from_text(text: str) -> CatalogVersion:
    """The version in a tag that another agent wrote; NO_VERSION for any other text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return NO_VERSION
    version = CatalogVersion(int(match[1] or "0", 16), int(match[2]))
    return version if max(version) < MAX_NUMBER else NO_VERSION
