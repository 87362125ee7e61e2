"""The messages that a consumer holds, and its words about them. Pure.

Law of this file: it decides when acks leave and which receipts name them. It decides when a lease is
extended, and which messages are released because nobody begins them. `now_ms` is a clock that never goes
back. One thread, the client's, changes all of this. The taker's thread, which may be another, calls `first`,
`take` and `give_back` alone; an interrupt there leaves each row in one place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final, NamedTuple

from shoal.format.receipt import receipt_of

FLUSH_MS: Final = 100
"""An ack that no receive has taken along leaves by itself so much later."""
FLUSH_ACKS: Final = 1_000
"""So many leave at once."""
ACTS_MAX: Final = 10_000
"""Receipts in one request: a tenth of what an agent takes."""
EXTENDED_MAX_MS: Final = 12 * 3_600_000
"""From its receipt on a message is held so long, and no longer: whatever works on it is taken for dead."""
EXTENDS_AGAIN: Final = 8
"""An extension without an answer is tried again after this part of the lease."""
_NEVER: Final = 2**62


class MessageOrder(StrEnum):
    """The mode of a group, as far as it concerns messages that wait behind one that was given back."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    KEY_ORDERED = "key-ordered"


class Word(NamedTuple):
    """A consumer's word about a message: `kind` is ack, nack, release or reject, and extend, which settles
    nothing. `delay_ms`: of a nack, None for the group's own; of an extend the new lease."""

    kind: str
    delay_ms: int | None = None
    reason: str = ""


ACK: Final = Word("ack")
RELEASE: Final = Word("release")


class MessagePiece(NamedTuple):
    """Rows of an answer whose offsets follow each other, of one due time and one attempt."""

    first: int
    rows: int
    attempt: int
    due_us: int = 0


class HeldAnswer:
    """One answer to a receive, until every message of it is settled. Rows count from 0."""

    __slots__ = (
        "_ends", "checked", "confirmed", "content", "extend_at_ms", "keys", "lease_ms", "partition",
        "pieces", "ready", "receipt", "received_ms", "rows", "said", "settled", "unsent", "unsent_since_ms",
        "until_ms",
    )  # fmt: skip

    def __init__(
        self, receipt: str, partition: int, pieces: Sequence[MessagePiece], keys: Sequence[bytes | None] = ()
    ) -> None:
        """`receipt`: of the whole answer. `keys`: of the rows, where the group keeps their order."""
        self.receipt = receipt
        self.partition = partition
        self.pieces = tuple(pieces)
        self.keys = keys
        self._ends = list(accumulate(piece.rows for piece in pieces))
        self.rows = self._ends[-1]
        self.content: Any = None
        """The shell's: what the rows hold."""
        self.ready = deque(range(self.rows))
        """Rows that nobody has begun."""
        self.said = bytearray(self.rows)
        """1 for each row about which a word was said, the first of which counts."""
        self.settled = 0
        """How many they are."""
        self.confirmed = 0
        """Of these, rows whose word an agent has answered."""
        self.unsent: list[int] = []
        """Acknowledged rows whose acks wait for company."""
        self.unsent_since_ms = 0
        self.lease_ms = self.received_ms = self.until_ms = self.extend_at_ms = 0
        self.checked: tuple[HeldAnswer, int] | None = None
        """The answer at the head of the line, and its unbegun rows, when this lease was looked at."""

    @property
    def taken(self) -> int:
        """Rows in somebody's hands."""
        return self.rows - self.settled - len(self.ready)

    @property
    def look_at_ms(self) -> int:
        """When its lease is to be extended, or its unbegun rows are to be dropped."""
        if self.settled == self.rows:
            return _NEVER
        return min(self.extend_at_ms, self.until_ms) if self.ready else self.extend_at_ms

    def piece_of(self, row: int) -> tuple[MessagePiece, int]:
        """The piece of a row, and the row's offset."""
        number = bisect_right(self._ends, row)
        piece = self.pieces[number]
        return piece, piece.first + row - (self._ends[number] - piece.rows)

    def is_rest(self, rows: Sequence[int]) -> bool:
        """Whether these are all rows that are not confirmed: then one receipt names them."""
        return 1 < len(rows) == self.rows - self.confirmed

    def receipts(self, rows: Sequence[int]) -> list[str]:
        """The receipts that name these rows, and of the others confirmed ones only."""
        if self.is_rest(rows):
            return [self.receipt]
        texts = []
        for row in rows:
            piece, offset = self.piece_of(row)
            texts.append(receipt_of(self.receipt, offset, piece.due_us))
        return texts


class Named(NamedTuple):
    """Rows of an answer, and the receipts that name them: one for all, or one for each."""

    answer: HeldAnswer
    rows: tuple[int, ...]
    receipts: tuple[str, ...]


class ActRequest(NamedTuple):
    """A word to be sent, about rows of answers. `again`: an earlier attempt may have happened."""

    word: Word
    parts: tuple[Named, ...]
    again: bool = False

    @property
    def receipts(self) -> list[str]:
        """Of all parts."""
        return [text for part in self.parts for text in part.receipts]

    def split(self, unheard: Container[str]) -> tuple[ActRequest, ActRequest]:
        """The part that was answered, and that whose receipts are among `unheard`."""
        heard: list[Named] = []
        left: list[Named] = []
        for part in self.parts:
            if len(part.receipts) < len(part.rows):
                (left if part.receipts[0] in unheard else heard).append(part)
                continue
            pairs = list(zip(part.rows, part.receipts, strict=True))
            for into, is_left in ((heard, False), (left, True)):
                chosen = [pair for pair in pairs if (pair[1] in unheard) is is_left]
                if chosen:
                    rows, texts = zip(*chosen, strict=True)
                    into.append(Named(part.answer, rows, texts))
        return self._replace(parts=tuple(heard)), self._replace(parts=tuple(left))


class Ledger:
    """All answers that a consumer holds."""

    def __init__(self, order: MessageOrder = MessageOrder.SHARED) -> None:
        self.order = order
        self.answers: dict[HeldAnswer, None] = {}
        self.line: deque[HeldAnswer] = deque()
        """Answers with rows to be taken, the first first; it grows here, and shrinks in `first`."""
        self.turns = 0
        """How often a message was given back, in a group that keeps an order."""
        self._others: dict[Word, list[tuple[HeldAnswer, int]]] = {}
        self._again: list[ActRequest] = []

    # --- the taker's thread

    def first(self, now_ms: int) -> tuple[HeldAnswer, int] | None:
        """The next row that nobody has begun; None while there is none whose lease runs."""
        while self.line:
            answer = self.line[0]
            try:
                row = answer.ready[0]
            except IndexError:
                self.line.popleft()
                continue
            return (answer, row) if now_ms < answer.until_ms else None  # `look` drops it
        return None

    def take(self, answer: HeldAnswer, row: int) -> bool:
        """Take the row that `first` gave; False where it was released meanwhile."""
        try:
            taken = answer.ready.popleft()
        except IndexError:
            return False
        if taken != row:
            answer.ready.appendleft(taken)
        return taken == row

    def give_back(self, answer: HeldAnswer, rows: Sequence[int]) -> None:
        """The rows were taken, or nearly, and have reached nobody: they come first again."""
        there = set(answer.ready)
        answer.ready.extendleft(row for row in reversed(rows) if row not in there and not answer.said[row])
        if answer.ready and (not self.line or self.line[0] is not answer):
            self.line.appendleft(answer)

    # --- the client's thread

    def received(self, answer: HeldAnswer, lease_ms: int, began_ms: int, now_ms: int) -> None:
        """An answer has come. `began_ms`: its lease runs since then, or later."""
        answer.lease_ms, answer.received_ms = lease_ms, now_ms
        answer.until_ms = began_ms + lease_ms
        answer.extend_at_ms = began_ms + lease_ms // 2
        self.answers[answer] = None
        answer.checked = self._head()
        self.line.append(answer)

    @property
    def ready(self) -> int:
        """Rows that nobody has begun."""
        return sum(len(answer.ready) for answer in self.answers)

    @property
    def taken(self) -> int:
        """Rows in somebody's hands."""
        return sum(answer.taken for answer in self.answers)

    @property
    def unconfirmed(self) -> int:
        """Rows whose word no agent has answered yet."""
        return sum(answer.settled - answer.confirmed for answer in self.answers)

    @property
    def unsent(self) -> int:
        """Acks that have not left."""
        return sum(len(answer.unsent) for answer in self.answers)

    def say(self, answer: HeldAnswer, rows: Sequence[int], word: Word, now_ms: int) -> None:
        """Settle rows that were taken; one that is settled stays so. Where the group keeps an order, unbegun
        messages behind one that comes again are released: they come after it."""
        if word.kind == "extend":
            answer.lease_ms = word.delay_ms or answer.lease_ms
            answer.extend_at_ms = min(answer.extend_at_ms, now_ms)
            return
        rows = self._settled(answer, rows)
        if not rows:
            return
        if word == ACK:
            if not answer.unsent:
                answer.unsent_since_ms = now_ms
            answer.unsent.extend(rows)
            return
        self._others.setdefault(word, []).extend((answer, row) for row in rows)
        if word.kind in ("nack", "release") and self.order is not MessageOrder.SHARED:
            self.turns += 1
            keys = {key for row in rows if answer.keys and (key := answer.keys[row]) is not None}
            for other in list(self.answers):
                if other.partition == answer.partition:
                    self._release_behind(other, keys)

    def _release_behind(self, answer: HeldAnswer, keys: set[bytes]) -> None:
        """Its unbegun rows, or those of these keys."""
        if self.order is MessageOrder.EXCLUSIVE:
            self._release(answer)
            return
        released = []
        for row in list(answer.ready):
            if answer.keys[row] in keys:
                try:
                    answer.ready.remove(row)
                except ValueError:  # the taker was there first
                    continue
                released.append(row)
        self._settle_unbegun(answer, released)

    def _release(self, answer: HeldAnswer) -> None:
        """All its rows that nobody has begun."""
        released = []
        while answer.ready:
            try:
                released.append(answer.ready.pop())
            except IndexError:  # the taker was there first
                break
        self._settle_unbegun(answer, released)

    def _settled(self, answer: HeldAnswer, rows: Sequence[int]) -> list[int]:
        """Those of the rows that were not settled so far."""
        fresh = [row for row in rows if not answer.said[row]]
        for row in fresh:
            answer.said[row] = 1
        answer.settled += len(fresh)
        return fresh

    def _settle_unbegun(self, answer: HeldAnswer, rows: Sequence[int]) -> None:
        rows = self._settled(answer, rows)
        if rows:
            self._others.setdefault(RELEASE, []).extend((answer, row) for row in sorted(rows))

    def release_unbegun(self) -> None:
        """All that nobody has begun: the consumer goes."""
        for answer in self.answers:
            self._release(answer)

    # --- words on their way

    def riding(self, now_ms: int) -> ActRequest | None:
        """The acks that go along with a receive: of answers that are worked off, as one receipt each, and
        those that have waited."""
        rows = []
        for answer in self.answers:
            complete = answer.settled == answer.rows
            if answer.unsent and (complete or now_ms >= answer.unsent_since_ms + FLUSH_MS):
                rows.append((answer, self._taken_out(answer)))
        return self._request(ACK, rows) if rows else None

    def due(self, now_ms: int, *, everything: bool = False) -> list[ActRequest]:
        """The requests that leave now: acks that have waited, other words at once."""
        requests, self._again = self._again, []
        full = self.unsent >= FLUSH_ACKS
        rows = [
            (answer, self._taken_out(answer))
            for answer in self.answers
            if answer.unsent and (everything or full or now_ms >= answer.unsent_since_ms + FLUSH_MS)
        ]
        others, self._others = self._others, {}
        words = [(ACK, rows)] if rows else []
        for word, said in others.items():
            by_answer: dict[HeldAnswer, list[int]] = {}
            for answer, row in said:
                by_answer.setdefault(answer, []).append(row)
            words.append((word, [(answer, tuple(found)) for answer, found in by_answer.items()]))
        for word, about in words:
            requests.extend(self._request(word, part) for part in _parts(about))
        return requests

    def _taken_out(self, answer: HeldAnswer) -> tuple[int, ...]:
        rows, answer.unsent = tuple(answer.unsent), []
        return rows

    def _request(self, word: Word, about: Sequence[tuple[HeldAnswer, tuple[int, ...]]]) -> ActRequest:
        parts = (Named(answer, rows, tuple(answer.receipts(rows))) for answer, rows in about)
        return ActRequest(word, tuple(parts))

    def confirm(self, request: ActRequest) -> None:
        """An agent has answered it: those rows are over, whatever the outcome."""
        for answer, rows, _ in request.parts:
            answer.confirmed += len(rows)
            if answer.confirmed == answer.rows:
                self.answers.pop(answer, None)

    def repeat(self, request: ActRequest, *, again: bool) -> None:
        """No answer: it leaves once more. `again`: this time it may have happened before."""
        if request.parts:
            self._again.append(request._replace(again=request.again or again))

    # --- leases

    def look(self, now_ms: int) -> list[HeldAnswer]:
        """The answers whose leases are to be extended now. Unbegun messages are released where nobody has
        begun any since the last look, or where the lease is over."""
        head, found = self._head(), []
        for answer in list(self.answers):
            if now_ms < answer.look_at_ms:
                continue
            spent = now_ms >= answer.received_ms + EXTENDED_MAX_MS
            if answer.ready and (spent or now_ms >= answer.until_ms or answer.checked == head):
                self._release_with_later(answer)
            answer.checked = head
            answer.extend_at_ms = now_ms + max(answer.lease_ms // EXTENDS_AGAIN, 1)
            if spent:
                answer.until_ms = answer.extend_at_ms = _NEVER  # of the client: the leader's ends
            elif answer.settled < answer.rows:
                found.append(answer)
        return found

    def _release_with_later(self, answer: HeldAnswer) -> None:
        """Its unbegun rows, and where the group keeps an order those behind them."""
        others = list(self.answers)
        for other in others[others.index(answer) :] if self.order is not MessageOrder.SHARED else [answer]:
            if other.partition == answer.partition:
                self._release(other)

    def extended(self, answer: HeldAnswer, sent_ms: int) -> None:
        """The leader holds them on, since a request that left at `sent_ms`."""
        answer.until_ms = sent_ms + answer.lease_ms
        answer.extend_at_ms = sent_ms + answer.lease_ms // 2

    def lost(self, answer: HeldAnswer) -> None:
        """The leader does not hold them any more: what nobody has begun is not given."""
        self._release_with_later(answer)
        answer.until_ms = answer.extend_at_ms = _NEVER  # rows in hand may still be acked, and refused

    def _head(self) -> tuple[HeldAnswer, int] | None:
        for answer in self.answers:
            if answer.ready:
                return answer, len(answer.ready)
        return None

    def deadline_ms(self) -> int | None:
        """When `due` or `look` have something to do; None: not before something else happens."""
        if self._others or self._again:
            return 0
        times = [answer.unsent_since_ms + FLUSH_MS for answer in self.answers if answer.unsent]
        times += [answer.look_at_ms for answer in self.answers]
        nearest_ms = min(times, default=_NEVER)
        return None if nearest_ms == _NEVER else nearest_ms

    def check_invariants(self) -> None:
        """Each row is in one place."""
        for answer in self.answers:
            assert 0 <= answer.confirmed <= answer.settled <= answer.rows - len(answer.ready)
            assert len(answer.unsent) <= answer.settled - answer.confirmed
            assert sorted(answer.ready) == list(answer.ready)


def _parts(
    about: Sequence[tuple[HeldAnswer, tuple[int, ...]]],
) -> Iterator[list[tuple[HeldAnswer, tuple[int, ...]]]]:
    """The same, in parts of at most ACTS_MAX rows."""
    part: list[tuple[HeldAnswer, tuple[int, ...]]] = []
    room = ACTS_MAX
    for answer, rows in about:
        whole = answer.is_rest(rows)
        first = 0
        while first < len(rows):
            count = len(rows) if whole else min(room, len(rows) - first)
            part.append((answer, rows[first : first + count]))
            first += count
            room -= 1 if whole else count
            if room <= 0:
                yield part
                part, room = [], ACTS_MAX
    if part:
        yield part
