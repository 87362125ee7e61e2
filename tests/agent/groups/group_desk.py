"""One group in one partition at one leader, with a feed in memory: what the shell does, without the shell."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.agent.groups.entry import Begin, GroupOperation
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.acts import Acted
from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.groups.leader.group_leader import Decision, GroupLeader, Refusal
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.groups.place import EntryStamp
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import (
    NOBODY,
    Act,
    ActKind,
    DuePlace,
    GroupKey,
    Promise,
    Question,
    Range,
    Wanted,
)
from shoal.format.batch import LogIndex, Offset
from shoal.format.receipt import Receipt

KEY = GroupKey(bytes(range(16)))
PARTITION = 3
START_US = 1_700_000_000_000_000
RECORD_BYTES = 100


def name(text: str) -> bytes:
    """A hash that people can read; NOBODY for none."""
    return text.encode().ljust(16, b"\0") if text else NOBODY


class MemoryFeed:
    """A log of keys. `hidden`: offsets that cannot be read now. `unread`: those whose keys are not known yet.
    `due`: due times, if the topic has them."""

    def __init__(self, keys: Sequence[int] = (), *, by_due: bool = False) -> None:
        self.hashes = list(keys)
        self.hidden: set[int] = set()
        self.unread: set[int] = set()
        self.by_due = by_due
        self.due: list[int] = []
        self.is_ready = True

    def end(self, append_us: int) -> DuePlace:
        """Behind everything, or behind what is due."""
        return DuePlace(append_us + 1, 0) if self.by_due else DuePlace(0, len(self.hashes))

    def places(self, append_us: int) -> list[DuePlace]:
        """All messages that can be read, in their order."""
        if self.by_due:
            return sorted(DuePlace(due, at) for at, due in enumerate(self.due) if due <= append_us)
        return [DuePlace(0, at) for at in range(len(self.hashes)) if at not in self.hidden]

    def new(self, after: DuePlace, limit: int, append_us: int) -> list[Range]:
        """See Feed."""
        pieces: list[Range] = []
        for place in [place for place in self.places(append_us) if place >= after][:limit]:
            if pieces and pieces[-1].end == place:
                pieces[-1] = pieces[-1]._replace(count=pieces[-1].count + 1)
            else:
                pieces.append(Range(*place, 1))
        return pieces

    def count(self, after: DuePlace, append_us: int) -> int:
        """See Feed."""
        return sum(place >= after for place in self.places(append_us))

    def rows_within(self, piece: Range, max_bytes: int) -> tuple[int, int]:
        """See Feed: every record has RECORD_BYTES."""
        if not self.is_ready:
            raise FeedNotReady
        rows = min(piece.count, max_bytes // RECORD_BYTES)
        return rows, rows * RECORD_BYTES

    def keys(self, piece: Range) -> Sequence[int]:
        """See Feed."""
        if not self.is_ready or self.unread.intersection(range(piece.first, piece.first + piece.count)):
            raise FeedNotReady
        return self.hashes[piece.first : piece.first + piece.count]

    def deadline_us(self, append_us: int) -> int | None:
        """See Feed."""
        return min((due for due in self.due if due > append_us), default=None)


class GroupDesk:
    """A leader, its fold, and the entries of its log. `replica`: another fold, of committed entries."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        feed: MemoryFeed | None = None,
        partition: int = PARTITION,
        partitions: int = 4,
    ) -> None:
        self.settings = settings or GroupSettings()
        self.partition = partition
        self.feed = feed or MemoryFeed()
        self.fold = GroupFold(by_due=self.feed.by_due)
        self.replica = GroupFold(by_due=self.feed.by_due)
        self.now_ms = 1_000
        self.index = 0
        self.committed = 0
        self.log: list[tuple[EntryStamp, bytes]] = []
        self.partitions = partitions  # one consumer owns them all
        self.fold_operations([Begin((1, 1))])
        self.commit()
        self.leader = self.new_leader()

    @property
    def append_us(self) -> int:
        """The stamp of the next entry."""
        return START_US + 1_000 * self.now_ms

    @property
    def group(self) -> PartitionGroup:
        """As it is at the log's end."""
        return self.fold.groups[KEY]

    def new_leader(self) -> GroupLeader:
        """One that knows nothing yet but the group."""
        leader = GroupLeader(
            self.group,
            self.settings,
            self.feed,
            partition=self.partition,
            partitions=self.partitions,
            fits=self.fold.would_fit,
        )
        for _ in leader.begin(self.now_ms):
            pass
        return leader

    def stamp(self) -> EntryStamp:
        """Of the entry that comes next."""
        return EntryStamp(LogIndex(self.index + 1), Offset(len(self.feed.hashes)), self.append_us)

    def fold_operations(self, operations: Sequence[GroupOperation]) -> None:
        """One entry. Every operation must happen."""
        if not operations:
            return
        stamp = self.stamp()
        assert all(self.fold.stage(KEY, operations, stamp)), operations
        payload = self.fold.staged_entry()
        self.fold.fold(stamp, payload)  # type: ignore[arg-type]
        self.index += 1
        self.log.append((stamp, payload))

    def commit(self, index: int | None = None) -> None:
        """Everything up to an index, or all."""
        behind = self.index if index is None else index
        for stamp, payload in self.log:
            if self.committed < stamp.index <= behind:
                self.replica.fold(stamp, payload)  # type: ignore[arg-type]
                self.replica.settle(stamp.index)
                self.fold.settle(stamp.index)
        self.committed = behind
        if self.committed > 1:
            self.leader.committed(self.committed, self.now_ms)

    def fail_over(self) -> None:
        """The leader goes with all entries that are not committed; the replica leads."""
        self.fold.undo_from(LogIndex(self.committed + 1))
        assert self.fold.to_bytes() == self.replica.to_bytes()
        self.log = [entry for entry in self.log if entry[0].index <= self.committed]
        self.index = self.committed
        again = GroupFold(by_due=self.feed.by_due)
        again.restore(self.replica.to_bytes())
        self.fold = again
        self.leader = self.new_leader()

    def ask(
        self, consumer: str = "", limit: int = 10, *, request: str = "", instance: str = "", promise: int = 0,
        max_bytes: int = 2**20, lease_ms: int | None = None,
    ) -> Decision | Refusal:  # fmt: skip
        """A receive; what it brings is folded, and not committed."""
        lease = self.settings.visibility_ms if lease_ms is None else lease_ms
        wanted = Wanted(
            name(consumer), name(instance), name(request), limit, max_bytes, lease, promise, consumer
        )
        decision = self.leader.receive(wanted, self.index + 1, self.now_ms, self.append_us)
        if isinstance(decision, Decision):
            self.fold_operations(decision.operations)
        self.check()
        return decision

    def receive(self, consumer: str = "", limit: int = 10, **more: object) -> Decision:
        """The same, committed. There must be something."""
        decision = self.ask(consumer, limit, **more)  # type: ignore[arg-type]
        assert isinstance(decision, Decision), decision
        self.commit()
        return decision

    def refused(self, consumer: str = "", **more: object) -> str:
        """A receive that brings nothing: why."""
        decision = self.ask(consumer, **more)  # type: ignore[arg-type]
        assert isinstance(decision, Refusal), decision
        return decision.reason

    def receipt(self, delivery: int, offset: int | None = None, due_us: int = 0) -> Receipt:
        """Of an answer of the group's generation, or of one of its messages."""
        return Receipt(KEY, self.partition, self.group.generation, delivery, offset, due_us)

    def act(self, kind: ActKind, *receipts: Receipt, **more: object) -> list[str | None]:
        """Say the same of several messages; the outcomes."""
        return list(self.acts([Act(kind, receipt, **more) for receipt in receipts]).outcomes)  # type: ignore[arg-type]

    def acts(self, acts: Sequence[Act]) -> Acted:
        """Folded, and not committed."""
        acted = self.leader.act(acts, self.now_ms, self.append_us)
        self.fold_operations(acted.operations)
        self.check()
        return acted

    def look(self) -> tuple[GroupOperation, ...]:
        """As at a deadline."""
        operations = self.leader.look(self.now_ms, self.append_us)
        self.fold_operations(operations)
        self.check()
        return operations

    def wait(self, consumer: str = "", limit: int = 1, *, request: str = "", instance: str = "") -> int:
        """Ask a question; its number."""
        question = Question(name(consumer), name(instance), name(request), limit)
        return self.leader.ask(question, self.now_ms).number

    def promised(self) -> list[Promise]:
        """The promises that are made now."""
        return [promise for _, promise in self.leader.promised(self.now_ms, self.append_us)]

    def change(self, settings: GroupSettings) -> None:
        """The group gets other settings."""
        self.settings = settings
        self.leader.change(settings, self.now_ms)

    def fold_others(self, *operations: GroupOperation) -> None:
        """Operations that the shell decides."""
        self.fold_operations(operations)
        self.leader.noted(self.now_ms)
        self.check()

    def check(self) -> None:
        """All invariants."""
        self.fold.check_invariants()
        self.leader.check_invariants(self.now_ms)


def offsets(decision: Decision) -> list[int]:
    """The messages of an answer."""
    return [
        offset for piece, _ in decision.delivered for offset in range(piece.first, piece.first + piece.count)
    ]


def attempts(decision: Decision) -> dict[int, int]:
    """And which attempt each is."""
    return {
        offset: attempt
        for piece, attempt in decision.delivered
        for offset in range(piece.first, piece.first + piece.count)
    }
