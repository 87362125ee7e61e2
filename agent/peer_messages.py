"""The frames that agents exchange beside Raft: numbers, and the small payloads among them.

Law of this file: pure. Numbers from 64 on belong to whoever composes the agent (peer_wire.py). Larger
payloads are encoded where their content lives (catalog.py, routes.py).
"""

from __future__ import annotations

import struct
from enum import IntEnum

from shoal.agent.peer_wire import PeerWireError
from shoal.replication.interfaces import MAX_INTEGER, ReplicaId

_VERSION = struct.Struct("<Q")
_REPLICA_ID = struct.Struct("<QQ")
TOPIC_ID_BYTES = 16


class PeerMessageError(PeerWireError):
    """A payload that is not what its number says."""


class PeerMessage(IntEnum):
    """Requests are answered, hints are not: a lost hint costs time, never correctness."""

    CATALOG_PULL = 64  # request: my version -> a snapshot, or nothing when there is nothing newer
    CATALOG_AWAIT = 65  # request: a version -> the version reached, once it is at least that or time is over
    CATALOG_HINT = 66  # hint: my version
    CATALOG_CONFIRM = 67  # request to the catalog's leader: topic id, sender has deleted its replicas
    ROUTES_PULL = 68  # request: (run, number) -> the delta of the receiver's claims
    ROUTES_HINT = 69  # hint: the newest delta of the sender's claims
    CATALOG_HOLD = 70  # request: hold this replica of the catalog, which a committed configuration names


def encode_version(version: int) -> bytes:
    """A catalog version."""
    return _VERSION.pack(version)


def decode_version(payload: bytes) -> int:
    """Raises PeerMessageError."""
    if len(payload) != _VERSION.size:
        raise PeerMessageError(f"a version of {len(payload)} bytes")
    version: int = _VERSION.unpack(payload)[0]
    return version


def decode_topic_id(payload: bytes) -> bytes:
    """Raises PeerMessageError."""
    if len(payload) != TOPIC_ID_BYTES:
        raise PeerMessageError(f"a topic id of {len(payload)} bytes")
    return payload


def encode_replica_id(replica_id: ReplicaId) -> bytes:
    """(term, index)."""
    return _REPLICA_ID.pack(*replica_id)


def decode_replica_id(payload: bytes) -> ReplicaId:
    """Raises PeerMessageError."""
    if len(payload) != _REPLICA_ID.size:
        raise PeerMessageError(f"a replica id of {len(payload)} bytes")
    term, index = _REPLICA_ID.unpack(payload)
    if max(term, index) > MAX_INTEGER:
        raise PeerMessageError("a replica id out of range")
    return ReplicaId(term, index)
