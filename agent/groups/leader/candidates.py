"""Which messages may be given next, and in which order: the leader's candidates.

Law of this file: pure. Messages that were given before are noted here as their leases end and their delays
fall due. The table of spans alone decides whether one still may be given again, so a stale note does no harm.
Looking changes nothing: what is given is folded by the shell, and falls out of the notes at the next look.

In a shared group the order is: messages whose delay is over, those whose lease has ended, new ones; each by
place. An exclusive group has one order, that of the places, and nothing passes what is not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from shoal.agent.groups.leader.leases import Leases
from shoal.agent.groups.partition_group import MAX_UNDONE_MESSAGES, PartitionGroup
from shoal.agent.groups.place import START, MessageSpan, RangeSet, SpanState, clipped
from shoal.agent.receive import Blocker, DuePlace, Range

MAX_GAPS: Final = 64
"""Places that a look for unread messages goes to before it goes to the end."""
NOTED_AT_ONCE: Final = 2_048
"""Pieces that fell due, or whose leases ended, in one turn: some 50 ms. The others are noted in the next."""
MAX_TAKEN_BACK: Final = 2_048
"""Spans that one decision takes back: they fit into one entry. Of more the last ones come first, and nothing
is given until all are taken back."""


class FeedNotReady(Exception):
    """The index or the keys are being read: ask again when the feed has told that it is ready."""


class Feed(Protocol):
    """The leader's view of the log, made by the shell. It never awaits, and may raise FeedNotReady."""

    def end(self, append_us: int) -> DuePlace:
        """Behind the last message that may be delivered: the high watermark, or the horizon of due times."""

    def new(self, after: DuePlace, limit: int, append_us: int) -> list[Range]:
        """At most so many messages from `after` to the end, ascending, without those that cannot be read."""

    def count(self, after: DuePlace, append_us: int) -> int:
        """How many messages there are from `after` up to the end."""

    def rows_within(self, piece: Range, max_bytes: int) -> tuple[int, int]:
        """How many leading messages of the piece fit, and their bytes."""

    def keys(self, piece: Range) -> Sequence[int]:
        """The 64-bit hash of each message's key; 0 for none."""

    def deadline_us(self, append_us: int) -> int | None:
        """When the next new message falls due; None where there are no due times, or none is left."""


class Eligible(NamedTuple):
    """Messages that may be given. `attempts`: before. `delivery`: by which they are in flight, 0 if not."""

    range: Range
    attempts: int
    delivery: int = 0

    @classmethod
    def of(cls, span: MessageSpan) -> Eligible:
        """Messages that were given before."""
        return cls(span.piece, span.attempts, span.delivery if span.state is SpanState.IN_FLIGHT else 0)

    def first(self, count: int) -> Eligible:
        """At most so many of them."""
        due_us, first, whole = self.range
        return self if whole <= count else Eligible(Range(due_us, first, count), self.attempts, self.delivery)


class Picked(NamedTuple):
    """`candidates`: in the order in which they are to be given. `taken_back`: messages in flight that come
    again behind them; those that are candidates too are counted there as they are without. `blocked`: there
    are others that wait for a message that is not done."""

    candidates: list[Eligible]
    taken_back: Sequence[MessageSpan] = ()
    blocked: bool = False


class Retries:
    """Messages that were given before and may come again. `spent`: those that have had all their attempts.
    `most`: so many attempts each message has; None: without limit."""

    def __init__(self, group: PartitionGroup, leases: Leases, most: int | None) -> None:
        self._group = group
        self._leases = leases
        self._later: list[tuple[int, Range]] = []
        self._turn_ms, self._left = -1, 0  # pieces that may be noted in this turn
        self.most = most
        self.due: list[Range] = []
        self.ended: list[Range] = []
        self.spent: list[Range] = []

    def wait(self, until_us: int, pieces: Iterable[Range]) -> None:
        """The messages may come again from then on."""
        for piece in pieces:
            heappush(self._later, (until_us, piece))

    def advance(self, now_ms: int, append_us: int) -> list[Range]:
        """Note the messages that have fallen due, and those whose leases have ended. Returns these."""
        if now_ms != self._turn_ms:
            self._turn_ms, self._left = now_ms, NOTED_AT_ONCE
        if not (self._later and self._later[0][0] <= append_us) and not self._leases.may_have_ended(now_ms):
            return []  # so it is with almost every request
        due: list[Range] = []
        while self._later and self._later[0][0] <= append_us and len(due) < self._left:
            due.append(heappop(self._later)[1])
        ended = self._leases.ended(now_ms, self._left - len(due))
        self._left = max(self._left - len(due) - len(ended), 0)
        noted: list[Range] = []
        for notes, pieces in ((self.due, due), (self.ended, ended)):
            spans = [span for piece in pieces for span in self.loose(piece, now_ms, append_us)]
            _note(notes, [span.piece for span in spans if not self.is_spent(span)])
            _note(self.spent, [span.piece for span in spans if self.is_spent(span)])
            noted += [span.piece for span in spans]
        return noted

    @property
    def may_lag(self) -> bool:
        """Whether more fell due, or ended, than could be noted in this turn."""
        return self._left <= 0

    def is_spent(self, span: MessageSpan) -> bool:
        """Whether the messages have had all their attempts."""
        return self.most is not None and span.attempts >= self.most

    def deadline_us(self) -> int | None:
        """When the next delay may be over."""
        return self._later[0][0] if self._later else None

    def find(self, state: SpanState, limit: int, ranges: int, now_ms: int, append_us: int) -> list[Eligible]:
        """Messages of `due` (WAITING) or `ended` (IN_FLIGHT) that may be given again, ascending: at least
        `limit`, or so many ranges, if there are so many. Stale notes go."""
        notes = self.due if state is SpanState.WAITING else self.ended
        found: list[Eligible] = []
        fresh: list[Range] = []
        seen = 0
        behind = DuePlace(0, 0)
        for piece in notes:
            if limit <= 0 or len(found) >= ranges:
                break
            seen += 1
            held = clipped(piece, behind, piece.end)
            if held is None:
                continue
            behind = held.end
            for span in self.loose(held, now_ms, append_us):
                if span.state is state and not self.is_spent(span):
                    fresh.append(span.piece)
                    found.append(Eligible.of(span))
                    limit -= span.count
        notes[:seen] = fresh
        return found

    def loose(self, piece: Range, now_ms: int, append_us: int) -> Iterator[MessageSpan]:
        """The messages of the piece that wait and are due, or whose lease has ended."""
        for span in self._group.spans.overlapping(piece):
            if span.state is SpanState.WAITING and span.until_us <= append_us:
                yield span
            elif span.state is SpanState.IN_FLIGHT:
                for held, has_ended in self._leases.split(span, now_ms):
                    if has_ended:
                        yield span._replace(first=held.first, count=held.count)

    def relook(self, now_ms: int) -> list[Range]:
        """Note everything anew that may come again: others changed the table, or the number of attempts is
        another. Returns the messages whose leases have ended."""
        for notes in (self.due, self.ended, self.spent):
            notes.clear()
        self._later.clear()
        for span in self._group.spans.from_place(START):
            self.resume(span, now_ms)
        return [*self.ended, *self.spent]

    def resume(self, span: MessageSpan, now_ms: int) -> None:
        """Note a span that stood in the table before."""
        if span.state is SpanState.WAITING:
            self.wait(span.until_us, (span.piece,))
        elif span.state is SpanState.IN_FLIGHT:
            ended = [held for held, has_ended in self._leases.split(span, now_ms) if has_ended]
            _note(self.spent if self.is_spent(span) else self.ended, ended)


def _note(notes: list[Range], pieces: list[Range]) -> None:
    """Put pieces among others, in the order of their places."""
    if pieces:
        notes += pieces
        notes.sort()


class GroupOrder(Protocol):
    """The order of a mode. `pick` changes nothing; the other methods tell what happens in the entry that is
    being made. `most_at_once`: messages of one answer, and all that promises hold back. `is_reading`: it
    stopped in the middle of a long look, and goes on in the next turn."""

    most_at_once: int
    is_reading: bool

    def pick(
        self, limit: int, ranges: int, now_ms: int, append_us: int, *, again_only: bool = False
    ) -> Picked:
        """At most `limit` messages, in at most so many ranges, that may be given now. `again_only`: that were
        given before."""

    def given(self, picked: Sequence[Eligible]) -> tuple[Range, ...]:
        """These are given. Returns the messages that are passed over for them, where places are due times."""

    def noted(self, pieces: Sequence[Range], now_ms: int) -> None:
        """The messages fell due, or their lease ended. Told at each look, also of none."""

    def held(self, piece: Range) -> None:
        """The lease of the messages, which had ended perhaps, runs again."""

    def released(self, piece: Range) -> None:
        """The messages were given back: they come again."""

    def done(self, piece: Range) -> None:
        """The messages are done, or given up."""

    def behind(self, spans: Sequence[MessageSpan]) -> list[MessageSpan]:
        """The messages in flight that must not be done before these, which come again."""

    def taken_along(self, place: DuePlace) -> tuple[int, int]:
        """A message that is given back takes others along that lie scattered: their lock, and how many."""

    def reset(self) -> None:
        """Others have changed the group."""

    def blocked_by(self) -> Blocker | None:
        """The message whose key everything waits for."""

    def check_invariants(self, now_ms: int) -> None:
        """That the order knows the group as it is."""


def unread(
    group: PartitionGroup, feed: Feed, limit: int, append_us: int, *, gapless: bool = False
) -> Iterator[Range]:
    """New messages, ascending: first those that were left out because they could not be read. `gapless`: up
    to the first that cannot be read now."""
    for gap in group.unseen(MAX_GAPS):
        behind = gap.begin
        for piece in feed.new(gap.begin, limit, append_us):
            held = clipped(piece, gap.begin, gap.end)
            if held is None:
                break
            if gapless and held.begin != behind:
                return
            yield held
            behind = held.end
        if gapless and behind != gap.end:
            return
    behind = group.next
    for piece in feed.new(behind, limit, append_us):
        if gapless and not group.by_due and piece.begin != behind:
            return
        yield piece
        behind = piece.end


class SharedOrder:
    """First the messages that were given before, then the new ones."""

    most_at_once = MAX_UNDONE_MESSAGES
    is_reading = False

    def __init__(self, group: PartitionGroup, feed: Feed, retries: Retries) -> None:
        self._group = group
        self._feed = feed
        self._retries = retries

    def pick(
        self, limit: int, ranges: int, now_ms: int, append_us: int, *, again_only: bool = False
    ) -> Picked:
        """See GroupOrder."""
        picked: list[Eligible] = []
        retries = self._retries
        for state in (SpanState.WAITING, SpanState.IN_FLIGHT) if retries.due or retries.ended else ():
            for candidate in retries.find(state, limit, ranges, now_ms, append_us):
                if limit and len(picked) < ranges:
                    limit = _add(picked, candidate, limit)
        limit = 0 if again_only else limit
        for piece in unread(self._group, self._feed, limit, append_us) if limit else ():
            if not limit or len(picked) >= ranges:
                break
            limit = _add(picked, Eligible(piece, 0), limit)
        return Picked(picked)

    def given(self, picked: Sequence[Eligible]) -> tuple[Range, ...]:
        """Nothing is passed over that another must find again."""
        return ()

    def noted(self, pieces: Sequence[Range], now_ms: int) -> None:
        """Nothing: the notes are looked through in their order."""

    def held(self, piece: Range) -> None:
        """Nothing: no message waits for another."""

    def released(self, piece: Range) -> None:
        """Nothing: no message waits for another."""

    def done(self, piece: Range) -> None:
        """Nothing: no message waits for another."""

    def behind(self, spans: Sequence[MessageSpan]) -> list[MessageSpan]:
        """None: no message waits for another."""
        return []

    def taken_along(self, place: DuePlace) -> tuple[int, int]:
        """None."""
        return 0, 0

    def reset(self) -> None:
        """Nothing: the table tells."""

    def blocked_by(self) -> Blocker | None:
        """No key."""
        return None

    def check_invariants(self, now_ms: int) -> None:
        """Nothing is known beside the table."""


class StrictOrder:
    """The order of the places: nothing is given while a message before it waits for its time, or for an
    operator. A message that comes again takes back all that its owner holds behind it, uncounted."""

    most_at_once = MAX_UNDONE_MESSAGES
    is_reading = False

    def __init__(self, group: PartitionGroup, feed: Feed, retries: Retries, leases: Leases) -> None:
        self._group = group
        self._feed = feed
        self._retries = retries
        self._leases = leases

    def pick(
        self, limit: int, ranges: int, now_ms: int, append_us: int, *, again_only: bool = False
    ) -> Picked:
        """See GroupOrder."""
        messages, retries = self._group.spans.messages, self._retries
        noted = retries.due or retries.ended or retries.spent or retries.may_lag
        picked = Picked([])
        if noted or messages[SpanState.WAITING] or messages[SpanState.STOPPED]:
            picked = self._walk(limit, ranges, now_ms, append_us)
            if picked.blocked or len(picked.taken_back) > MAX_TAKEN_BACK:
                return picked._replace(taken_back=picked.taken_back[-MAX_TAKEN_BACK:])
            if not picked.candidates:
                retries.due.clear()
                retries.ended.clear()
        limit = 0 if again_only else limit - sum(candidate.range.count for candidate in picked.candidates)
        for piece in unread(self._group, self._feed, limit, append_us, gapless=True) if limit > 0 else ():
            if not limit or len(picked.candidates) >= ranges:
                break
            limit = _add(picked.candidates, Eligible(piece, 0), limit)
        return picked

    def _walk(self, limit: int, ranges: int, now_ms: int, append_us: int) -> Picked:
        """The messages that were given before, up to one that everything behind it waits for."""
        again: list[Eligible] = []
        taken_back: list[MessageSpan] = []
        blocked = False
        left = limit
        in_hand = self._leases.runs_to(now_ms)
        for span in self._group.spans.from_place(START):
            if span.begin >= in_hand and (left <= 0 or len(again) > ranges):
                break  # enough, and nothing behind it to be taken back
            if span.state is SpanState.STOPPED or (
                span.state is SpanState.WAITING
                and (span.until_us > append_us or self._retries.is_spent(span))
            ):
                blocked = True  # everything behind it waits for it, though nobody has it in hand
            elif span.state is SpanState.WAITING and not blocked:
                again.append(Eligible.of(span))
                left -= span.count
            elif span.state is SpanState.IN_FLIGHT:
                for held, has_ended in self._leases.split(span, now_ms):
                    part = span._replace(first=held.first, count=held.count)
                    is_spent = has_ended and self._retries.is_spent(span)
                    blocked |= is_spent
                    if again and not has_ended:
                        taken_back.append(part)
                        part = part._replace(state=SpanState.WAITING, attempts=span.attempts - 1)
                    if (again or has_ended) and not blocked:
                        again.append(Eligible.of(part))
                        left -= part.count
            if blocked and not again:
                break
        if len(taken_back) > MAX_TAKEN_BACK:
            return Picked([], taken_back, blocked=True)
        candidates: list[Eligible] = []
        for candidate in again:
            if limit and len(candidates) < ranges:
                limit = _add(candidates, candidate, limit)
        # The others of them must be given before anything behind them.
        return Picked(candidates, taken_back, blocked=blocked or len(candidates) < len(again) or not limit)

    def given(self, picked: Sequence[Eligible]) -> tuple[Range, ...]:
        """Nothing is passed over."""
        return ()

    def noted(self, pieces: Sequence[Range], now_ms: int) -> None:
        """Nothing: the table is looked through in its order."""

    def held(self, piece: Range) -> None:
        """Nothing: the table tells."""

    def released(self, piece: Range) -> None:
        """Nothing: the table tells."""

    def done(self, piece: Range) -> None:
        """Nothing: the table tells."""

    def behind(self, spans: Sequence[MessageSpan]) -> list[MessageSpan]:
        """All that is in flight behind the first of them, up to MAX_TAKEN_BACK; the rest later."""
        first = min(span.begin for span in spans)
        named = RangeSet(span.piece for span in spans)
        found: list[MessageSpan] = []
        for span in self._group.spans.from_place(first):
            if len(found) >= MAX_TAKEN_BACK:
                break
            if span.state is SpanState.IN_FLIGHT:
                found += [
                    span._replace(first=part.first, count=part.count)
                    for part in named.missing(span.piece)
                    if part.begin > first
                ]
        return found

    def taken_along(self, place: DuePlace) -> tuple[int, int]:
        """They lie behind it, whole spans of them."""
        return 0, 0

    def reset(self) -> None:
        """Nothing: the table tells."""

    def blocked_by(self) -> Blocker | None:
        """No key."""
        return None

    def check_invariants(self, now_ms: int) -> None:
        """Nothing is known beside the table."""


def _add(picked: list[Eligible], candidate: Eligible, limit: int) -> int:
    """Add as much of a candidate as the limit allows; the limit that is left."""
    picked.append(candidate.first(limit))
    return limit - picked[-1].range.count
