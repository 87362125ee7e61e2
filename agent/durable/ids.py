"""Which topic and which partition: the ids that stand in records, frames and the catalog."""

from __future__ import annotations

import struct
from typing import NamedTuple

from shoal.agent.log_lines.names import partition_name

ID_BYTES = 16
"""Of a topic and of a cluster: random bytes, made at its birth."""
_GROUP = struct.Struct("<16sI")


class IdentityError(Exception):
    """The agent's own records are damaged or cannot be what they say. The text says what to do."""


class GroupId(NamedTuple):
    """One partition of one topic: one Raft group. Topic ids are 16 bytes, made at the topic's birth; eight
    of them at least are random."""

    topic_id: bytes
    partition: int

    def to_bytes(self) -> bytes:
        """20 bytes, for keys and frames."""
        return _GROUP.pack(self.topic_id, self.partition)

    def __str__(self) -> str:
        """For people, so by name."""
        return partition_name(self.topic_id, self.partition)


GROUP_ID_BYTES = _GROUP.size
CATALOG_GROUP = GroupId(bytes(16), 0)


def group_id_from_bytes(data: bytes) -> GroupId:
    """The inverse of GroupId.to_bytes. Raises IdentityError."""
    if len(data) != _GROUP.size:
        raise IdentityError(f"a group id of {len(data)} bytes")
    return GroupId(*_GROUP.unpack(data))
