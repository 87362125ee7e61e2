"""Every decoder of stored bytes, with bytes it accepts, the one error it may raise, and how to make hostile
bytes of the good ones: for the test beside this and for scripts/campaign.

Mutations know nothing of the formats but one thing: where a checksum lies it is made good again in half of
the cases, or nothing behind it would ever be met.
"""

import asyncio
import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c
from memory_disk import MemoryDisk

from shoal.agent.durable.identity import AgentIdentity, HardStateFile, _decode_record
from shoal.agent.durable.ids import GroupId, IdentityError
from shoal.agent.durable.paired_file import decode_slot, encode_slot
from shoal.agent.groups.entry import Begin, Deliver, Die, ReasonCode, Release, decode_entry, encode_entry
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.place import GroupWireError
from shoal.agent.host.scrubber import Cursor
from shoal.agent.partition.state.checkpoint import Checkpoint, FoldError, decode_configuration
from shoal.agent.partition.state.idempotence import ProducerTable, ProducerTableError
from shoal.agent.partition.state.retention import RetentionError, decode_trim, encode_trim
from shoal.agent.peers.messages import (
    PeerMessageError,
    decode_audit,
    decode_letter,
    decode_letters,
    encode_audit,
    encode_letter,
    encode_letters,
)
from shoal.agent.receive import GroupKey, Range
from shoal.agent.topics.catalog import Catalog, CatalogError, CreateTopic, Seal
from shoal.agent.topics.catalog_codec import decode_command, encode_command
from shoal.agent.topics.cluster_file import ClusterFileError, ClusterRecord
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    END_OF_STREAM,
    BatchError,
    Kind,
    LogIdentity,
    LogIndex,
    Offset,
    ProducerStamp,
    StreamDecoder,
    Term,
    control_frame,
    control_payload,
    decode_stream,
    parse_frame,
    parse_stamp,
    schema_frame,
    schema_message,
    stamp_message,
    to_record_batch,
    view_frame,
)
from shoal.format.producer_table import GatheredRange, decode_producer_table, encode_producer_table
from shoal.format.records import RecordColumns, columns_to_message
from shoal.replication.interfaces import Configuration, HardState, ReplicaId
from shoal.segment_store.errors import FormatError
from shoal.segment_store.format.index import Entry, decode_block, decode_index_file, encode_blocks
from shoal.segment_store.format.layout import SegmentName, parse_name
from shoal.segment_store.format.recovery import Chain, find_frame, find_tail_records, follow_chain
from shoal.segment_store.format.tail_record import (
    TailRecord,
    decode_tail_record,
    decode_trailer,
    encode_trailer,
)
from tests.agent.groups.group_entries import entry_stamp, stamp_of
from tests.agent.groups.test_entry import EVERY
from tests.agent.harness import message
from tests.agent.topics.test_catalog import entry, folded

IDENTITY = LogIdentity(b"c" * 16, b"t" * 16, 3)
SLOWEST_SECONDS = (
    0.5  # of CPU, of one decoding of a few kilobytes: more means that a hostile length was believed
)
CHAIN = Chain(LogIndex(1), Offset(0), Term(0))
Heal = Callable[[bytearray], None]


class Target(NamedTuple):
    """`errors`: what `decode` may raise; none where hostile bytes are an answer, not an error."""

    name: str
    samples: Sequence[bytes]
    decode: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...]
    heal: Heal | None = None


def _frames() -> list[bytes]:
    numbers = {"base_offset": Offset(0), "term": Term(1), "previous_term": Term(0), "index": LogIndex(1)}
    producer = ProducerStamp(b"p" * 16, 1, 2)
    data = stamp_message(message("a", "bc"), IDENTITY, append_time_us=5, producer=producer, **numbers)  # type: ignore[arg-type]
    control = control_frame(
        DEFAULT_SCHEMA,
        IDENTITY,
        kind=Kind.TRIM,
        control=encode_trim(LogIndex(7)),
        append_time_us=5,
        **numbers,
    )  # type: ignore[arg-type]
    header = schema_frame(
        DEFAULT_SCHEMA, IDENTITY, first_index=LogIndex(1), first_offset=Offset(0), previous_term=Term(0)
    )
    return [data.data, control.data, header]


def _heal_frame(data: bytearray) -> None:
    """The first frame's checksum, where its stamp would lie."""
    if len(data) < 8:
        return
    (size,) = struct.unpack_from("<i", data, 4)
    stamp = 8 + size - 128
    if 8 <= stamp <= len(data) - 128:
        length = stamp + 128 + int.from_bytes(data[stamp + 48 : stamp + 56], "little")
        rest = bytes(data[stamp + 8 : length])
        data[stamp + 4 : stamp + 8] = struct.pack(
            "<I", crc32c(rest, crc32c(bytes(data[: stamp + 4]), IDENTITY.seed))
        )


def _heal_record(size: int, at: int = 0) -> Heal:
    """A tail record's: magic, checksum of everything behind itself."""

    def heal(data: bytearray) -> None:
        if len(data) >= at + 16:
            checked = bytes(data[at + 12 : at + size])
            data[at + 8 : at + 12] = struct.pack("<I", crc32c(checked, IDENTITY.seed))

    return heal


def _heal_block(data: bytearray) -> None:
    if len(data) >= 36:
        header, body = bytes(data[12:36]), bytes(data[36 : 36 + 56 * int.from_bytes(data[16:20], "little")])
        data[8:12] = struct.pack("<I", crc32c(body, crc32c(header, IDENTITY.seed)))


def _heal_slot(data: bytearray) -> None:
    if len(data) > 4:
        data[-4:] = struct.pack("<I", crc32c(bytes(data[:-4])))


def _heal_cluster(data: bytearray) -> None:
    first, _, body = bytes(data).partition(b"\n")
    data[:] = b"%s %08x\n" % (first.split(b" ")[0], crc32c(body)) + body


def _entries() -> list[Entry]:
    return [
        Entry(LogIndex(1 + n), Offset(2 * n), 1000 + 800 * n, 800, 2, Term(1 + n // 3), 5) for n in range(6)
    ]


def _feed(data: bytes) -> None:
    decoder = StreamDecoder(DEFAULT_SCHEMA)
    for start in range(0, len(data), 700):
        decoder.feed(data[start : start + 700])
    decoder.close()


def _stream() -> bytes:
    batch = message("a", "bc", "d" * 300)
    prefix = struct.pack("<4si", b"\xff" * 4, len(batch.metadata))
    return schema_message(DEFAULT_SCHEMA) + prefix + batch.metadata + bytes(batch.body) + END_OF_STREAM


def _decode_frame(data: bytes) -> None:
    stamp, view = view_frame(data, 0, IDENTITY)
    assert len(view) <= len(data)
    control_payload(bytes(view))
    if stamp.kind is Kind.DATA:
        to_record_batch(bytes(view), DEFAULT_SCHEMA)


def _decode_stamp(data: bytes) -> None:
    parse_stamp(data, 0)
    parse_frame(data, 0, IDENTITY, verify=False)


def _scan(data: bytes) -> None:
    stretch = follow_chain(data, 0, CHAIN, IDENTITY)
    assert stretch.end_position <= len(data)
    find_frame(data, 0, len(data), CHAIN, IDENTITY)
    for record in find_tail_records(data, 0, IDENTITY):
        assert record.end_position < len(data)


def _decode_tail_record(data: bytes) -> None:
    decode_tail_record(data, 0, IDENTITY)


def _decode_trailer(data: bytes) -> None:
    decode_trailer(data, 0, IDENTITY)


def _decode_block(data: bytes) -> None:
    block, end = decode_block(data, 0, IDENTITY)
    assert end <= len(data)
    assert len(list(block)) == len(block)


def _decode_index_file(data: bytes) -> None:
    found = decode_index_file(data, LogIndex(1), Offset(0), IDENTITY)
    assert found.good_bytes <= len(data)
    assert (found.problem is None) == (found.good_bytes == len(data))
    assert len(found.held) * 48 <= found.good_bytes
    assert all(item.length > 0 for item in found.held)


class _Slots:
    """Decoders that take what a slot of a doubled file held."""

    def __init__(self) -> None:
        self.group = GroupId(b"t" * 16, 3)
        self.hard = asyncio.run(self._open())

    async def _open(self) -> HardStateFile:
        disk = MemoryDisk()
        await disk.make_directory("d")
        return await HardStateFile.open(disk, "d")

    def hard_state(self) -> bytes:
        asyncio.run(self.hard.save(self.group, ReplicaId(Term(1), LogIndex(0)), HardState()))
        data = self.hard._records.get(self.group.to_bytes())
        assert data is not None
        return data

    def decode_replica_record(self, data: bytes) -> None:
        _decode_record(self.group.to_bytes(), data)

    def decode_hard_state(self, data: bytes) -> None:
        self.hard._records._records[self.group.to_bytes()] = data
        self.hard.get(self.group)


def _producers() -> ProducerTable:
    table = ProducerTable()
    for number in range(6):
        table.record(
            ProducerStamp(bytes([1 + number % 2]) * 16, 1, number),
            base_offset=Offset(number),
            count=1,
            index=LogIndex(number + 1),
            elapsed_us=5,
        )
    for number in range(3):
        stamp = ProducerStamp(bytes([9]) * 16, 1, number << 32, in_lanes=True)
        table.record(stamp, base_offset=Offset(9), count=1, index=LogIndex(9), elapsed_us=5)
    return table


def _groups() -> GroupFold:
    """Two groups with spans, letters and requests."""
    fold = GroupFold()
    for key in (GroupKey(b"g" * 16), GroupKey(b"h" * 16)):
        begin = Begin((1, 0))
        deliver = Deliver(b"c" * 16, b"r" * 16, 30, (Range(0, 0, 9), Range(0, 12, 1)))
        die = Die(1, ReasonCode.NACK, (Range(0, 2, 2),), b"text")
        release = Release(1, 7, (Range(0, 5, 1),))
        fold.stage(key, [begin, deliver, die, release], entry_stamp(1))
    fold.fold(stamp_of(entry_stamp(1)), fold.staged_entry())
    return fold


def _restore_groups(data: bytes) -> None:
    fold = GroupFold()
    fold.restore(data)
    assert fold.to_bytes() == data
    fold.check_invariants()


def _decode_group_entry(data: bytes) -> None:
    assert encode_entry(decode_entry(data)) == data


def _name(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    name = parse_name(text)
    assert name is None or parse_name(name.segment_file) == name


def targets() -> list[Target]:
    """All of them; built on demand, since samples are made by the encoders themselves."""
    return [*_log_targets(), *_partition_targets(), *_agent_targets()]


def _log_targets() -> list[Target]:
    """What the segment store reads."""
    frames = _frames()
    trailer = encode_trailer(TailRecord(LogIndex(5), Term(2), 4096, LogIndex(4), Offset(9)), IDENTITY)
    blocks = encode_blocks(_entries(), IDENTITY)
    return [
        Target("stamp", frames, _decode_stamp, (BatchError,), _heal_frame),
        Target("frame", frames, _decode_frame, (BatchError,), _heal_frame),
        Target("segment", [frames[0] + frames[1] + trailer], _scan, (), _heal_frame),
        Target("schema", [frames[2] + END_OF_STREAM], decode_stream, (BatchError,), _heal_frame),
        Target("stream", [_stream()], decode_stream, (BatchError,)),
        Target("arriving stream", [_stream()], _feed, (BatchError,)),
        Target("tail record", [trailer[8:]], _decode_tail_record, (FormatError,), _heal_record(64)),
        Target("trailer", [trailer], _decode_trailer, (FormatError,), _heal_record(64, 8)),
        Target("index block", blocks, _decode_block, (FormatError,), _heal_block),
        Target("index file", [b"".join(blocks)], _decode_index_file, (), _heal_block),
        Target("segment name", [SegmentName(LogIndex(5), Offset(3)).segment_file.encode()], _name, ()),
    ]


def _partition_targets() -> list[Target]:
    """What a replica reads from its log's control entries."""
    configuration = Configuration.birth(("a" * 32, "b" * 32, "c" * 32))
    producers = _producers()
    checkpoint = Checkpoint(LogIndex(4), Term(2), Offset(9), 5, configuration, producers.to_bytes(), b"state")
    gathered = [GatheredRange(ProducerStamp(b"p" * 16, 1, n), 2 * n, 2) for n in range(4)]
    catalog = folded(CreateTopic(entry()))
    commands = [encode_command(CreateTopic(entry())), encode_command(Seal(b"s" * 16))]
    return [
        Target("producer ranges", [encode_producer_table(gathered)], decode_producer_table, (BatchError,)),
        Target("checkpoint", [checkpoint.to_bytes()], Checkpoint.from_bytes, (FoldError,)),
        Target("configuration", [configuration.to_bytes()], decode_configuration, (FoldError,)),
        Target("producer table", [producers.to_bytes()], _producers().restore, (ProducerTableError,)),
        Target("groups", [_groups().to_bytes()], _restore_groups, (GroupWireError,)),
        Target(
            "group entry",
            [encode_entry({GroupKey(b"g" * 16): EVERY})],
            _decode_group_entry,
            (GroupWireError,),
        ),
        Target("dead letter", [_letter()], decode_letter, (PeerMessageError,)),
        Target("audit records", [_audit_records()], decode_audit, (PeerMessageError,)),
        Target("dead letters", [_letters()], decode_letters, (PeerMessageError,)),
        Target("trim", [encode_trim(LogIndex(9))], decode_trim, (RetentionError,)),
        Target("catalog", [catalog.to_bytes()], Catalog.from_bytes, (CatalogError,)),
        Target("catalog command", commands, decode_command, (CatalogError,)),
    ]


def _letter() -> bytes:
    columns = RecordColumns([None], [b"key"], [b"value"], [[("shoal-letter", b"7")]])
    producer = ProducerStamp(b"p" * 16, 0, 6)
    return encode_letter(GroupId(b"t" * 16, 3), producer, columns_to_message(columns, 1_000_000))


def _audit_records() -> bytes:
    columns = RecordColumns([None] * 2, [None] * 2, [b"{}", b"{}"], [None] * 2)
    return encode_audit(ProducerStamp(b"p" * 16, 0, 6), columns_to_message(columns, 1_000_000))


def _letters() -> bytes:
    return encode_letters(Offset(7), [frame for frame in _frames() if parse_stamp(frame, 0)[0].record_count])


def _agent_targets() -> list[Target]:
    """What an agent reads of its own files."""
    catalog = folded(CreateTopic(entry())).to_bytes()
    cluster = ClusterRecord("fish", b"i" * 16, ("a" * 32,), catalog).to_bytes()
    identity = AgentIdentity("a" * 32, b"c" * 16, "n").to_bytes()
    slots = _Slots()
    return [
        Target("cluster file", [cluster], ClusterRecord.from_bytes, (ClusterFileError,), _heal_cluster),
        Target("slot", [encode_slot(1, b"key", b"payload")], decode_slot, (), _heal_slot),
        Target("identity", [identity], AgentIdentity.from_bytes, (IdentityError,)),
        Target(
            "replica record", [struct.pack("<QQB", 1, 2, 1)], slots.decode_replica_record, (IdentityError,)
        ),
        Target("hard state", [slots.hard_state()], slots.decode_hard_state, (IdentityError,)),
        Target("scrub cursor", [Cursor(slots.group, LogIndex(5)).to_bytes()], Cursor.from_bytes, ()),
    ]


_EXTREMES = (
    b"\0" * 8,
    b"\xff" * 8,
    b"\xff" * 4,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\0" * 7,
    b"\xff\xff\xff\x7f",
)
_NOISES = (
    b"[" * 3000,
    b'{"a":' * 1500,
    b"9" * 5000,
    b"NaN",
    b"1e999",
    b"null",
    b"\xed\xa0\x80",
    b"\xff\xff\xff\xff",
)


def mutated(rng: random.Random, samples: Sequence[bytes], heal: Heal | None) -> bytes:
    """Hostile bytes: one to four changes of a good sample."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 40)]
            case 4:
                data[at:at] = rng.randbytes(rng.randrange(1, 40))
            case 5:
                extreme = rng.choice(_EXTREMES)
                data[at : at + len(extreme)] = extreme
            case 6:
                other = rng.choice(samples)
                start = rng.randrange(len(other) + 1)
                data[at:] = other[start:]
            case 7:
                data[at : at + rng.randrange(3)] = rng.choice(_NOISES)
    if heal is not None and rng.random() < 0.5:
        heal(data)
    return bytes(data)


def fuzz(target: Target, seed: int, count: int) -> int:
    """So many hostile inputs; how many of them were accepted. AssertionError says what was wrong and shows
    the bytes."""
    rng = random.Random(seed)
    accepted = 0
    for sample in target.samples:
        target.decode(sample)
    for _ in range(count):
        data = mutated(rng, target.samples, target.heal)
        started = time.thread_time()
        try:
            target.decode(data)
            accepted += 1
        except target.errors:
            pass
        except Exception as error:
            raise AssertionError(f"{target.name}, seed {seed}: {error!r} for {data[:2000].hex()}") from error
        taken = time.thread_time() - started
        assert taken < SLOWEST_SECONDS, f"{target.name}, seed {seed}: {taken:.2f} s for {data[:2000].hex()}"
    return accepted
