"""The frames that agents exchange beside Raft: numbers, and the small payloads among them.

Law of this file: pure. Numbers up to 63 stand in frames.py. Larger
payloads are encoded where their content lives (catalog.py, agent/routing/table.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import pyarrow as pa

from shoal.agent.durable.catalog_version import CatalogVersion, version_from_bytes
from shoal.agent.durable.ids import GROUP_ID_BYTES, ID_BYTES, GroupId, IdentityError, group_id_from_bytes
from shoal.agent.peers.frames import PeerWireError
from shoal.format.arrow_stream import CONTINUATION, DEFAULT_SCHEMA, PREFIX
from shoal.format.batch import (
    BatchError,
    Message,
    Offset,
    ProducerStamp,
    message_from_batch,
    to_record_batch,
)
from shoal.replication.errors import WireError
from shoal.replication.interfaces import Configuration, ReplicaId

_REPLICA = struct.Struct("<qq")
_LETTER = struct.Struct("<16sqq")  # producer, epoch, sequence
_AUDIT = struct.Struct("<16sqqB")
_OFFSET = struct.Struct("<q")
_LENGTH = struct.Struct("<I")


class PeerMessageError(PeerWireError):
    """A payload that is not what its number says."""


class PeerMessage(IntEnum):
    """Requests are answered, hints are not: a lost hint costs time, never correctness."""

    CATALOG_PULL = 64  # request: my version -> a piece of a newer state, or nothing when there is none
    CATALOG_AWAIT = 65  # request: a version -> the version reached, once it is at least that or time is over
    CATALOG_HINT = 66  # hint: my version
    CATALOG_CONFIRM = 67  # request to the catalog's leader: topic id, sender has deleted its replicas
    ROUTES_PULL = 68  # request: (run, number) -> the delta of the receiver's claims
    ROUTES_HINT = 69  # hint: the newest delta of the sender's claims
    GROUP_HOLD = 70  # request: a committed configuration that names the receiver: hold that replica
    GROUP_CONFIGURATION = 71  # request: group -> its committed configuration, empty when it is not held
    SEGMENTS_OFFER = 72  # request: a leader's log begins behind what the receiver holds -> what it holds now
    SEGMENTS_PIECE = 73  # request: entries of a group from an index on -> some of them
    ENTRY = 74  # request: an entry, damaged at the asker's, by index and term -> its frame, or why not
    GROUP_POSITION = 76  # request: group -> where the log of a working replica ends
    GROUP_LOST = 75  # request: the sender's replica of the group will never vote again -> nothing
    CLOCK = 77  # request -> the receiver's wall clock, microseconds since the epoch
    CATALOG_BORN = 79  # request to the catalog's leader: births led by the sender -> those that are final now
    VIEW_RUNS = 81  # request: group -> the manifest of its sorted view, whose runs stay for a while
    VIEW_PIECE = 82  # request: group, run, position -> bytes of the run's file
    CATALOG_KEPT = 78  # request -> what the receiver holds of topics that its catalog does not know
    LETTERS = 80  # request to the leader of a partition of dead letters: one -> nothing, or why it never will
    AUDIT = (
        84  # request to the leader of the audit's topic, or to the catalog's: records -> nothing, once stored
    )
    LINK_RENEWAL = 85  # request: kind of a link that the receiver dialled -> nothing; it dials it anew
    LETTERS_READ = 83  # request to the same: a place -> batches from there on, and where to go on


def decode_version(payload: bytes) -> CatalogVersion:
    """Of the catalog. Raises PeerMessageError."""
    version = version_from_bytes(payload)
    if version is None:
        raise PeerMessageError(f"no version of the catalog, {len(payload)} bytes")
    return version


def decode_topic_id(payload: bytes) -> bytes:
    """Raises PeerMessageError."""
    if len(payload) != ID_BYTES:
        raise PeerMessageError(f"a topic id of {len(payload)} bytes")
    return payload


def decode_group(payload: bytes) -> GroupId:
    """A group's bytes. Raises PeerMessageError."""
    try:
        return group_id_from_bytes(payload)
    except IdentityError as error:
        raise PeerMessageError(str(error)) from None


def encode_hold(group: GroupId, configuration: Configuration, *, caught_up: bool) -> bytes:
    """configuration: a committed one. caught_up: the receiver's replica holds everything already."""
    return group.to_bytes() + bytes([caught_up]) + configuration.to_bytes()


def decode_hold(payload: bytes) -> tuple[GroupId, Configuration, bool]:
    """Group, configuration, caught_up. Raises PeerMessageError."""
    if len(payload) <= GROUP_ID_BYTES or payload[GROUP_ID_BYTES] > 1:
        raise PeerMessageError(f"a hold of {len(payload)} bytes")
    try:
        configuration = Configuration.from_bytes(payload[GROUP_ID_BYTES + 1 :])
    except WireError as error:
        raise PeerMessageError(str(error)) from None
    return decode_group(payload[:GROUP_ID_BYTES]), configuration, payload[GROUP_ID_BYTES] == 1


def encode_lost(group: GroupId, replica_id: ReplicaId) -> bytes:
    """The sender's replica of that id is lost."""
    return group.to_bytes() + _REPLICA.pack(*replica_id)


def decode_lost(payload: bytes) -> tuple[GroupId, ReplicaId]:
    """Raises PeerMessageError."""
    if len(payload) != GROUP_ID_BYTES + _REPLICA.size:
        raise PeerMessageError(f"{len(payload)} bytes about a lost replica")
    return decode_group(payload[:GROUP_ID_BYTES]), ReplicaId(*_REPLICA.unpack_from(payload, GROUP_ID_BYTES))


def encode_letter(target: GroupId, producer: ProducerStamp, message: Message) -> bytes:
    """A dead letter for that partition, and its place among those of the producer."""
    numbers = _LETTER.pack(producer.producer_id, producer.epoch, producer.sequence)
    prefix = PREFIX.pack(CONTINUATION, len(message.metadata))
    return b"".join((target.to_bytes(), numbers, prefix, message.metadata, bytes(message.body)))


def decode_letter(payload: bytes) -> tuple[GroupId, ProducerStamp, Message]:
    """Raises PeerMessageError for anything but one record."""
    begin = GROUP_ID_BYTES + _LETTER.size
    if len(payload) < begin:
        raise PeerMessageError(f"a dead letter of {len(payload)} bytes")
    producer = ProducerStamp(*_LETTER.unpack_from(payload, GROUP_ID_BYTES))
    if not any(producer.producer_id) or min(producer.epoch, producer.sequence) < 0:
        raise PeerMessageError(f"a dead letter from {producer}")
    try:
        batch = to_record_batch(payload[begin:], DEFAULT_SCHEMA)
        batch.validate(full=True)
        if batch.num_rows != 1:
            raise PeerMessageError(f"{batch.num_rows} dead letters at once")
        return decode_group(payload[:GROUP_ID_BYTES]), producer, message_from_batch(batch)
    except (BatchError, pa.ArrowException) as error:
        raise PeerMessageError(f"a dead letter that is no record: {error}") from None


def encode_audit(producer: ProducerStamp, records: Message) -> bytes:
    """Records of the audit, and their place among those of the producer."""
    numbers = _AUDIT.pack(producer.producer_id, producer.epoch, producer.sequence, producer.in_lanes)
    prefix = PREFIX.pack(CONTINUATION, len(records.metadata))
    return b"".join((numbers, prefix, records.metadata, bytes(records.body)))


def decode_audit(payload: bytes) -> tuple[ProducerStamp, Message]:
    """Raises PeerMessageError."""
    if len(payload) < _AUDIT.size:
        raise PeerMessageError(f"audit records of {len(payload)} bytes")
    producer_id, epoch, sequence, in_lanes = _AUDIT.unpack_from(payload)
    producer = ProducerStamp(producer_id, epoch, sequence, in_lanes=in_lanes == 1)
    if not any(producer_id) or min(epoch, sequence) < 0 or in_lanes > 1:
        raise PeerMessageError(f"audit records from {producer}")
    try:
        batch = to_record_batch(payload[_AUDIT.size :], DEFAULT_SCHEMA)
        batch.validate(full=True)
        if batch.num_rows < 1:
            raise PeerMessageError("no audit records")
        return producer, message_from_batch(batch)
    except (BatchError, pa.ArrowException) as error:
        raise PeerMessageError(f"audit records that are no batch: {error}") from None


def encode_letters_wanted(target: GroupId, offset: Offset) -> bytes:
    """Dead letters of that partition, from the offset on."""
    return target.to_bytes() + _OFFSET.pack(offset)


def decode_letters_wanted(payload: bytes) -> tuple[GroupId, Offset]:
    """Raises PeerMessageError."""
    if len(payload) != GROUP_ID_BYTES + _OFFSET.size:
        raise PeerMessageError(f"{len(payload)} bytes about a place of dead letters")
    (offset,) = _OFFSET.unpack_from(payload, GROUP_ID_BYTES)
    if offset < 0:
        raise PeerMessageError(f"dead letters from offset {offset} on")
    return decode_group(payload[:GROUP_ID_BYTES]), Offset(offset)


def encode_letters(next_offset: Offset, frames: Sequence[bytes | memoryview]) -> bytes:
    """Batches as they are stored, and the offset behind them."""
    parts: list[bytes | memoryview] = [_OFFSET.pack(next_offset)]
    for frame in frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    return b"".join(parts)


def decode_letters(payload: bytes) -> tuple[Offset, list[pa.RecordBatch]]:
    """The offset behind the batches, and these. Raises PeerMessageError."""
    if len(payload) < _OFFSET.size:
        raise PeerMessageError(f"dead letters of {len(payload)} bytes")
    (next_offset,) = _OFFSET.unpack_from(payload)
    position, batches = _OFFSET.size, []
    while position < len(payload):
        begin = position + _LENGTH.size
        position = begin + (_LENGTH.unpack_from(payload, position)[0] if begin <= len(payload) else 0)
        if position > len(payload) or begin > len(payload):
            raise PeerMessageError("dead letters that end within a batch")
        try:
            batch = to_record_batch(payload[begin:position], DEFAULT_SCHEMA)
            batch.validate(full=True)
        except (BatchError, pa.ArrowException) as error:
            raise PeerMessageError(f"dead letters that are no batch: {error}") from None
        batches.append(batch)
    if next_offset < 0:
        raise PeerMessageError(f"dead letters up to offset {next_offset}")
    return Offset(next_offset), batches
