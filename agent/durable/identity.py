"""The durable facts outside the logs: this agent's identity, its replicas, and the promises of each.

Law of this file: records and their meaning; paired_file.py keeps them through crashes. The host keeps the
order at the birth of a replica: registry `creating`, log directory, hard state, registry `active`, first
message. A replica that is active, but without data or hard state, is `lost` (safety 2, 3).
"""

import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import NamedTuple

from shoal.agent.durable.ids import GroupId, IdentityError, group_id_from_bytes
from shoal.agent.durable.paired_file import PairedFile, PairedFileError, PairedFileFull
from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import HardState, ReplicaId
from shoal.segment_store.disk.disk import Disk

MAX_NAME_BYTES = 128
_IDENTITY_KEY = b"agent"
_REGISTRY_KEY = b"registry"
_MADE_KEY = b"made"
_BOOT_KEY = b"machine-boot"
_REGISTRY = struct.Struct("<qqB")
_HARD_STATE = struct.Struct("<qqqBqqqq")


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Kept for life. `cluster_id` is None until it has founded or joined a cluster; ports 0 until known."""

    agent_id: str
    cluster_id: bytes | None
    name: str
    http_port: int = 0
    gossip_port: int = 0

    def __post_init__(self) -> None:
        if re.fullmatch("[0-9a-f]{32}", self.agent_id) is None:
            raise IdentityError(f"agent id {self.agent_id!r} is not 32 lower-case hexadecimal digits")
        if self.cluster_id is not None and len(self.cluster_id) != 16:
            raise IdentityError("a cluster id has 16 bytes")
        if not 1 <= len(self.name.encode()) <= MAX_NAME_BYTES:
            raise IdentityError(f"an agent's name has 1 to {MAX_NAME_BYTES} bytes")
        if not (0 <= self.http_port <= 65_535 and 0 <= self.gossip_port <= 65_535):
            raise IdentityError("a port is between 0 and 65535")

    def to_bytes(self) -> bytes:
        """JSON: small, and readable in a hex dump when everything else is broken."""
        document = asdict(self)
        document["cluster_id"] = None if self.cluster_id is None else self.cluster_id.hex()
        return json.dumps(document, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "AgentIdentity":
        """Raises IdentityError."""
        try:
            document = json.loads(data)
            cluster_id = document.pop("cluster_id")
            return cls(cluster_id=None if cluster_id is None else bytes.fromhex(cluster_id), **document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise IdentityError(f"the agent's identity cannot be read: {error}") from error


def new_agent_id() -> str:
    """128 random bits; made once, with the data directory (safety 2)."""
    return os.urandom(16).hex()


class _Store:
    """Records in one doubled file."""

    def __init__(self, records: PairedFile) -> None:
        self._records = records

    async def close(self) -> None:
        """Wait for saves under way and close the files."""
        await self._records.close()


class IdentityStore(_Store):
    """The one record about the agent itself."""

    @classmethod
    async def open(cls, disk: Disk, directory: str) -> "IdentityStore":
        """Raises IdentityError when the record was written once and neither copy can be read now."""
        records = await PairedFile.open(disk, directory, "identity")
        if records.damaged_slots:
            await records.close()
            raise IdentityError(
                f"both copies of {directory}/identity are damaged: restore one from a backup, or move the "
                "directory away and let this agent start anew under another id"
            )
        return cls(records)

    def load(self) -> AgentIdentity | None:
        """None before the first save. Raises IdentityError."""
        data = self._records.get(_IDENTITY_KEY)
        return None if data is None else AgentIdentity.from_bytes(data)

    @property
    def has_registry(self) -> bool:
        """Whether a registry of replicas was made for this agent: from then on its absence is a loss."""
        return self._records.get(_REGISTRY_KEY) is not None

    async def note_registry(self) -> None:
        """The registry is durable."""
        if not self.has_registry:
            await self._records.save(_REGISTRY_KEY, b"made")

    async def note_machine_boot(self, boot_id: str) -> bool:
        """Durable on return. True: the machine has been on since this agent last ran; not so where `boot_id`
        is empty, as it is not known."""
        boot = boot_id.encode("ascii", "replace")
        if boot in (b"", self._records.get(_BOOT_KEY)):
            return boot != b""
        await self._records.save(_BOOT_KEY, boot)
        return False

    async def save(self, identity: AgentIdentity) -> None:
        """Durable in both copies on return."""
        await self._records.save(_IDENTITY_KEY, identity.to_bytes())


class ReplicaState(IntEnum):
    """creating: this replica id has sent nothing. lost: it may have promised what it no longer knows.
    removed: a committed configuration is without it, and its data are deleted; the record stays while the
    topic lives, lest the birth configuration brings back a voter that forgot its vote. installing: active,
    and the copy in its side directory replaces its log (safety 27). recovering: active under this new id,
    once its hard state is kept under it too."""

    CREATING = 0
    ACTIVE = 1
    LOST = 2
    REMOVED = 3
    INSTALLING = 4
    RECOVERING = 5


class ReplicaRecord(NamedTuple):
    """One replica this agent holds or held."""

    group: GroupId
    replica_id: ReplicaId
    state: ReplicaState


class ReplicaRegistry(_Store):
    """Every replica id this agent has taken, outside the partitions' directories (safety 2)."""

    def __init__(self, records: PairedFile) -> None:
        super().__init__(records)
        self._by_group: dict[GroupId, ReplicaRecord] = {}
        self._refused: set[GroupId] = set()
        """What the disk says of them may not be what readers see: nothing is changed until that is undone."""
        for key, payload in records.items():
            if key == _MADE_KEY:
                continue
            record = _decode_record(key, payload)
            self._by_group[record.group] = record

    @classmethod
    async def open(cls, disk: Disk, directory: str, *, was_made: bool = False) -> "ReplicaRegistry":
        """was_made: the agent's identity says that there is one. Raises IdentityError when it is gone, or a
        record cannot be read: an agent that forgot a replica could vote twice."""
        records = await PairedFile.open(disk, directory, "replicas")
        if was_made and records.get(_MADE_KEY) is None:
            await records.close()
            raise IdentityError(
                f"{directory}/replicas.a and .b, which say what this agent promised, are gone: restore one "
                "of them, or start anew with an empty --data"
            )
        if records.damaged_slots:
            await records.close()
            raise IdentityError(
                f"both copies of {records.damaged_slots} records of {directory}/replicas are damaged: this "
                "agent can no longer tell what it promised; move the directory away and let it start anew"
            )
        if records.get(_MADE_KEY) is None:
            await records.save(_MADE_KEY, b"")
        return cls(records)

    def get(self, group: GroupId) -> ReplicaRecord | None:
        """None: no replica of the group was held here, or it was deleted."""
        return self._by_group.get(group)

    def __iter__(self) -> Iterator[ReplicaRecord]:
        return iter(list(self._by_group.values()))

    async def put(self, record: ReplicaRecord) -> None:
        """Durable on return, before the replica's first message. Readers see it no earlier: a save that
        failed leaves no record. Raises PairedFileError."""
        await self._change(record.group, record)
        self._by_group[record.group] = record

    async def remove(self, group: GroupId) -> None:
        """Only on a committed configuration without the replica, or a committed topic deletion (safety 4).
        Raises PairedFileError: then the record is still there."""
        await self._change(group, None)
        self._by_group.pop(group, None)

    async def _change(self, group: GroupId, record: ReplicaRecord | None) -> None:
        self._records.check()
        if self._refused:
            raise PairedFileFull("no room for the register of replicas, when it was last written")
        try:
            await self._write(group, record)
        except PairedFileFull:
            self._refused.add(group)
            raise

    async def _write(self, group: GroupId, record: ReplicaRecord | None) -> None:
        if record is None:
            await self._records.remove(group.to_bytes())
        else:
            payload = _REGISTRY.pack(*record.replica_id, record.state)
            await self._records.save(group.to_bytes(), payload)

    async def write_again(self) -> bool:
        """There may be room again: whatever was refused is undone on the disk, so that it says what readers
        see. A crash on the way leaves what one right after the refused change would have left. False: it is
        refused again."""
        if not await self._records.write_again():
            return False
        while self._refused:
            group = next(iter(self._refused))
            try:
                await self._write(group, self._by_group.get(group))
            except PairedFileError as error:  # a disk that has failed says so to whoever saves next
                return not isinstance(error, PairedFileFull)
            self._refused.discard(group)
        return True


def _decode_record(key: bytes, payload: bytes) -> ReplicaRecord:
    try:
        term, index, state = _REGISTRY.unpack(payload)
        return ReplicaRecord(group_id_from_bytes(key), ReplicaId(term, index), ReplicaState(state))
    except (struct.error, ValueError) as error:
        raise IdentityError(f"a replica record that cannot be read: {error}") from error


class HardStateFile(_Store):
    """Term and vote of every replica here, in one group-committed file (safety 3).

    Beside them stands how far each log must reach at least (`floor`). Before its index is written, only the
    newest segment tells its contents. A log that has lost it would look as if it had never had it.
    """

    def __init__(self, records: PairedFile) -> None:
        super().__init__(records)
        self._synced_terms: dict[GroupId, Term] = {}
        """Of groups that were saved in this run."""

    @classmethod
    async def open(cls, disk: Disk, directory: str) -> "HardStateFile":
        """Damaged slots are no error: a registered replica without a hard state is lost, the others serve."""
        return cls(await PairedFile.open(disk, directory, "hard-state"))

    def check(self) -> None:
        """Raises PairedFileError when the disk may hold other states than these after a restart."""
        self._records.check()

    async def write_again(self) -> bool:
        """There may be room again: what was refused is written, of which nobody was told. So a replica may
        find a vote that it never gave. False: it is refused again."""
        return await self._records.write_again()

    @property
    def damaged_slots(self) -> int:
        """Hard states of which neither copy can be read."""
        return self._records.damaged_slots

    def get(self, group: GroupId) -> tuple[ReplicaId, HardState] | None:
        """The replica id it was saved under, and the state; None when there is none. Raises IdentityError."""
        fields = self._fields(group)
        if fields is None:
            return None
        own_term, own_index, term, voted, vote_term, vote_index, commit, _ = fields
        vote = ReplicaId(vote_term, vote_index) if voted else None
        return ReplicaId(own_term, own_index), HardState(Term(term), vote, LogIndex(commit))

    def synced_term(self, group: GroupId) -> Term:
        """The newest term that a power failure leaves, while `get` may tell one on its way to the disk; 0
        without any. Raises IdentityError."""
        synced = self._synced_terms.get(group)
        if synced is not None:
            return synced
        stored = self.get(group)
        return Term(0) if stored is None else stored[1].term

    def floor(self, group: GroupId) -> LogIndex:
        """The last entry that the log has held, synced; 0: none is known. Raises IdentityError."""
        fields = self._fields(group)
        return LogIndex(0 if fields is None else fields[-1])

    def _fields(self, group: GroupId) -> tuple[int, ...] | None:
        payload = self._records.get(group.to_bytes())
        if payload is None:
            return None
        try:
            return _HARD_STATE.unpack(payload)
        except struct.error as error:
            raise IdentityError(f"the hard state of {group} cannot be read: {error}") from error

    async def save(self, group: GroupId, replica_id: ReplicaId, state: HardState) -> None:
        """Both copies are synced on return; no message of that term leaves earlier."""
        vote = state.vote if state.vote is not None else ReplicaId(0, 0)
        self._synced_terms[group] = self.synced_term(group)
        await self._save(
            group,
            (*replica_id, state.term, state.vote is not None, *vote, state.commit_index, self.floor(group)),
        )
        if group in self._synced_terms:  # else it was removed meanwhile
            self._synced_terms[group] = max(self._synced_terms[group], state.term)

    async def save_floor(self, group: GroupId, floor: LogIndex) -> None:
        """After the entry is synced and before anybody is told; before a truncation goes below it."""
        fields = self._fields(group)
        assert fields is not None, "the floor of a log whose replica was never born"
        await self._save(group, (*fields[:-1], floor))

    async def lower_floor(self, group: GroupId, last_index: LogIndex) -> None:
        """The log is about to end with that entry, or before. Saves nothing where the floor is lower, on the
        disk too."""
        self.check()
        if last_index < self.floor(group):
            await self.save_floor(group, last_index)

    async def _save(self, group: GroupId, fields: tuple[int, ...]) -> None:
        await self._records.save(group.to_bytes(), _HARD_STATE.pack(*fields))

    async def remove(self, group: GroupId) -> None:
        self._synced_terms.pop(group, None)
        await self._records.remove(group.to_bytes())
