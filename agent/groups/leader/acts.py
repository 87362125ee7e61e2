"""The words of consumers about messages they have: outcomes for them, and operations for the log.

Law of this file: pure. Each act is judged against the table at the log's end, and against the acts before it
in the same request. Those that are refused do not touch the others. An act counts while its delivery is the
newest of the message, also after the lease has ended, and under any leader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from shoal.agent.groups.entry import (
    MAX_ENTRY_RANGES,
    MAX_TEXT_BYTES,
    Acknowledge,
    Die,
    Fate,
    GroupOperation,
    ReasonCode,
    Release,
)
from shoal.agent.groups.leader.candidates import MAX_TAKEN_BACK, GroupOrder, Retries
from shoal.agent.groups.leader.leases import Leases
from shoal.agent.groups.partition_group import (
    MAX_LETTERS,
    MAX_SPANS,
    MAX_UNDONE_MESSAGES,
    PartitionGroup,
)
from shoal.agent.groups.place import LETTER, START, MessageSpan, RangeSet, SpanState, joined
from shoal.agent.groups.settings import DURATIONS, GroupSettings, retry_delay_ms
from shoal.agent.groups.spans import SPAN_BYTES
from shoal.agent.receive import NOBODY, Act, ActKind, DuePlace, GroupMode, Range
from shoal.format.receipt import Receipt

MAX_ACTS: Final = 2_048
"""In one decision: with all that they take back they fit into one entry. The shell splits more of them."""
SPANS_KEPT_FREE: Final = 512
"""For messages that come again, beside those that are acked out of order."""
BYTES_KEPT_FREE: Final = 64 * 2**10
BYTES_FOR_RETRIES: Final = BYTES_KEPT_FREE // 2
"""The other half is for letters: so messages still die that nobody may be given again."""
MAX_TAKEN_ALONG: Final = 2 * 4_096
"""Messages that come again with others of their keys, in one decision: folded in about 0.1 s."""
LETTER_BYTES: Final = LETTER.size + MAX_TEXT_BYTES
FATES: Final = {"letter": Fate.LETTER, "drop": Fate.DROP, "stop": Fate.STOP}
SPANS_OF_A_LETTER: Final = 2
DELAYED: Final = {ActKind.NACK: "delay", ActKind.EXTEND: "visibility"}
"""The acts that may name a time, and how DURATIONS calls its bounds."""

Key = tuple[type, int, int, int, bytes]
"""Of messages that go into one operation: which one, delivery, until_us or code, uncounted or fate, text."""


class Acted(NamedTuple):
    """`outcomes`: in the order of the acts; None is done, else a code."""

    operations: tuple[GroupOperation, ...]
    outcomes: tuple[str | None, ...]


class ActJudge:
    """Judges the acts of one group in one partition."""

    def __init__(
        self,
        group: PartitionGroup,
        leases: Leases,
        retries: Retries,
        order: GroupOrder,
        partition: int,
        fits: Callable[[int], bool],
    ) -> None:
        self.group = group
        self.leases = leases
        self.retries = retries
        self.order = order
        self.partition = partition
        self.fits = fits

    def judge(
        self, acts: Sequence[Act], settings: GroupSettings, owner: bytes | None, now_ms: int, append_us: int
    ) -> Acted:
        """Operations for the acts, at most MAX_ACTS. All changes are noted as if they were folded."""
        assert len(acts) <= MAX_ACTS, len(acts)
        request = _Request(self, settings, owner, now_ms, append_us)
        outcomes = tuple([request.outcome(act) for act in acts])
        request.take_back()
        return Acted(request.operations(), outcomes)

    def expire(
        self, settings: GroupSettings, spans: Iterable[MessageSpan], now_ms: int, append_us: int
    ) -> tuple[GroupOperation, ...]:
        """Give up messages that have had all their attempts: no more than `may_die`."""
        request = _Request(self, settings, None, now_ms, append_us)
        all_died = [request.die([span], ReasonCode.EXPIRED, b"") for span in spans]
        assert all(all_died), "more messages died than may"
        request.take_back()
        return request.operations()

    def may_die(self, settings: GroupSettings) -> int:
        """How many messages may be given up now."""
        if FATES[settings.dead] is not Fate.LETTER:
            return MAX_UNDONE_MESSAGES
        return _Request(self, settings, None, 0, 0).letters_left()


class _Request:
    """The acts of one request so far. `taken`: messages that they spoke of."""

    __slots__ = (
        "_along",
        "_append_us",
        "_given_back",
        "_group",
        "_judge",
        "_letters",
        "_locks",
        "_now_ms",
        "_owner",
        "_pieces",
        "_settings",
        "_spans",
        "_taken",
        "_whole",
    )

    def __init__(
        self, judge: ActJudge, settings: GroupSettings, owner: bytes | None, now_ms: int, append_us: int
    ) -> None:
        self._judge = judge
        self._group = judge.group
        self._settings = settings
        self._owner = owner
        self._now_ms = now_ms
        self._append_us = append_us
        self._taken = RangeSet()
        self._pieces: dict[Key, list[Range]] = {}
        self._given_back: list[MessageSpan] = []
        self._whole: dict[tuple[ActKind, Receipt, int | None], str | None] = {}  # outcomes, of whole answers
        self._spans = self._letters = 0  # that the operations so far add
        self._locks: set[int] = set()  # whose messages are taken along
        self._along = 0

    def outcome(self, act: Act) -> str | None:
        """The outcome of an act: None if it is done. A whole answer may be thousands of spans: they are
        looked through once for each kind of act."""
        receipt = act.receipt
        if receipt.offset is not None or act.kind is ActKind.UP_TO:
            return self._outcome(act)
        whole = (act.kind, receipt, act.delay_ms)
        if whole not in self._whole:
            self._whole[whole] = self._outcome(act)
        elif self._whole[whole] is None and act.kind is not ActKind.EXTEND:
            return "receipt-used"
        return self._whole[whole]

    def _outcome(self, act: Act) -> str | None:
        receipt = act.receipt
        if receipt.partition != self._judge.partition:
            return "receipt-of-another-group"
        if act.kind is ActKind.UP_TO:
            return self._up_to(act)
        if receipt.generation < self._group.generation:
            return "receipt-before-seek"
        if act.delay_ms is not None and act.kind in DELAYED:
            low_ms, high_ms = DURATIONS[DELAYED[act.kind]]
            if not low_ms <= act.delay_ms <= high_ms:
                return "bad-delay"
        spans, refusal = self._held(receipt)
        if not spans:
            return "not-held" if act.kind is ActKind.EXTEND and refusal == "receipt-used" else refusal
        if (
            receipt.offset is not None
            and act.kind is not ActKind.EXTEND
            and not self._has_room(spans[0], act)
        ):
            return "too-fragmented"
        match act.kind:
            case ActKind.ACK:
                self._done(spans)
            case ActKind.NACK:
                self._nack(spans, act)
            case ActKind.RELEASE:
                self._give_back(spans, 0, uncounted=True)
            case ActKind.REJECT:
                return None if self.die(spans, ReasonCode.REJECTED, _text_of(act)) else "letters-full"
            case ActKind.EXTEND:
                return self._extend(spans, act)
        return None

    def _held(self, receipt: Receipt) -> tuple[list[MessageSpan], str]:
        """The messages in flight that a receipt speaks of; why there are none."""
        if receipt.offset is None:
            return self._held_whole(receipt.delivery), "receipt-used"
        place = DuePlace(receipt.due_us, receipt.offset)
        span = self._group.spans.at(place)
        if span is None or span.state in (SpanState.DONE, SpanState.DYING) or place in self._taken:
            return [], "receipt-used"
        if span.delivery != receipt.delivery:
            return [], "receipt-expired"
        if span.state is not SpanState.IN_FLIGHT:
            return [], "receipt-used"
        return [span._replace(first=place.offset, count=1)], ""

    def _held_whole(self, delivery: int) -> list[MessageSpan]:
        spans, leases = self._group.spans, self._judge.leases
        if leases.complete:
            found = [
                span for piece in joined(leases.ranges_of(delivery)) for span in spans.overlapping(piece)
            ]
        else:
            found = [span for span in spans.from_place(START) if span.delivery == delivery]
        held = [span for span in found if span.delivery == delivery and span.state is SpanState.IN_FLIGHT]
        if not self._taken:
            return held
        return [
            span._replace(first=part.first, count=part.count)
            for span in held
            for part in self._taken.missing(span.piece)
        ]

    def _up_to(self, act: Act) -> str | None:
        """Everything that the owner holds up to a place is done."""
        if self._owner is None or act.consumer != self._owner:
            return "receipt-expired"
        offset = act.receipt.offset
        assert offset is not None
        end = DuePlace(act.receipt.due_us, offset + 1)
        held: list[MessageSpan] = []
        for span in self._group.spans.from_place(START):
            if span.begin >= end or len(held) > MAX_TAKEN_BACK:
                break
            if self._judge.leases.holder(span.delivery) != self._owner:
                continue  # of a former owner: this one was never given them
            if span.state is SpanState.IN_FLIGHT:
                upper = min(span.end, end)
                count = upper.offset - span.first if upper.due_us == span.due_us else span.count
                piece = Range(span.due_us, span.first, count)
                held += [span._replace(first=p.first, count=p.count) for p in self._taken.missing(piece)]
        self._done(held[:MAX_TAKEN_BACK])
        if len(held) > MAX_TAKEN_BACK:
            return "too-fragmented"
        return None if held else "receipt-used"

    def _has_room(self, single: MessageSpan, act: Act) -> bool:
        """Whether the table can be cut so, here and where others come again with it; counts it. Whole answers
        and edges of spans cut nothing."""
        place = single.begin
        before, behind = DuePlace(place.due_us, place.offset - 1), DuePlace(place.due_us, place.offset + 1)
        span = self._group.spans.at(place)
        assert span is not None
        grown = 0
        for beside, inside in ((before, place != span.begin), (behind, behind != span.end)):
            if beside in self._taken:
                grown -= 1
            elif inside:
                grown += 1
            elif act.kind is ActKind.ACK:
                span = self._group.spans.at(beside)
                done = beside < self._group.floor if span is None else span.state is SpanState.DONE
                grown -= int(done)
        lock, along = (0, 0) if act.kind is ActKind.ACK else self._judge.order.taken_along(place)
        along = 0 if lock in self._locks else along  # they come again once
        if self._along + along > MAX_TAKEN_ALONG:
            return False
        grown += 2 * along
        if grown > 0:
            room = MAX_SPANS - SPANS_KEPT_FREE - self._group.spans_taken - self._spans
            if grown > room or not self._judge.fits(grown * SPAN_BYTES + self._bytes() + BYTES_KEPT_FREE):
                return False
        self._spans += grown
        self._along += along
        self._locks.add(lock)
        return True

    def _bytes(self) -> int:
        """So much the acts so far add to the fold, at most."""
        return max(self._spans, 0) * SPAN_BYTES + self._letters * LETTER_BYTES

    def _done(self, spans: Sequence[MessageSpan]) -> None:
        for span in spans:
            self._judge.order.done(self._take(span, (Acknowledge, span.delivery, 0, 0, b"")))

    def _nack(self, spans: Sequence[MessageSpan], act: Act) -> None:
        most = self._settings.max_attempts
        for span in spans:
            delay_ms = act.delay_ms
            if most is not None and span.attempts >= most:
                if self.die([span], ReasonCode.NACK, _text_of(act)):
                    continue
                delay_ms = 0  # too many letters wait: it dies when there is room
                (rest,) = self._taken.missing(span.piece)
                span = span._replace(first=rest.first, count=rest.count)
            if delay_ms is None:
                delay_ms = retry_delay_ms(self._settings, span.attempts)
            self._give_back([span], self._append_us + 1000 * delay_ms, uncounted=False)

    def _give_back(self, spans: Sequence[MessageSpan], until_us: int, *, uncounted: bool) -> None:
        for span in spans:
            self._take(span, (Release, span.delivery, until_us, int(uncounted), b""))
            self._given_back.append(span)
            self._judge.retries.wait(until_us, [span.piece])
            self._judge.order.released(span.piece)

    def die(self, spans: Sequence[MessageSpan], code: ReasonCode, text: bytes) -> bool:
        """Give messages up, as the group's setting says. False: not all, since too many letters wait."""
        fate = FATES[self._settings.dead]
        for span in spans:
            count = span.count
            if fate is Fate.LETTER:
                count = min(count, self.letters_left())
            if count:
                dead = span._replace(count=count)
                self._take(dead, (Die, span.delivery, int(code), int(fate), text))
                if fate is Fate.STOP:
                    self._given_back.append(dead)
                    self._judge.order.released(dead.piece)
                else:
                    self._judge.order.done(dead.piece)
                    self._letters += count if fate is Fate.LETTER else 0
            if count < span.count:
                return False
        return True

    def letters_left(self) -> int:
        """How many messages more may become letters."""
        group = self._group
        letters = MAX_LETTERS - len(group.letters) - self._letters
        spans = MAX_SPANS - group.spans_taken - self._spans - SPANS_OF_A_LETTER * self._letters - 2
        most = max(min(letters, spans // SPANS_OF_A_LETTER), 0)

        def is_too_much(count: int) -> bool:
            return not self._judge.fits(self._bytes() + count * LETTER_BYTES + BYTES_FOR_RETRIES)

        return bisect_left(range(1, most + 1), True, key=is_too_much)

    def _extend(self, spans: Sequence[MessageSpan], act: Act) -> str | None:
        leases = self._judge.leases
        holder = leases.holder(spans[0].delivery)
        if self._settings.mode is GroupMode.EXCLUSIVE and holder != self._owner:
            return "not-held"  # its owner was gone, or is not known yet: the next one may wait for it
        until_ms = self._now_ms + (self._settings.visibility_ms if act.delay_ms is None else act.delay_ms)
        for span in spans if not leases.complete else ():
            leases.resume(span, NOBODY, self._now_ms)
        if act.receipt.offset is None:
            leases.extend_all(act.receipt.delivery, until_ms)
        elif not leases.extend(spans[0].delivery, [span.piece for span in spans], until_ms):
            return "too-fragmented"
        for span in spans:
            self._judge.order.held(span.piece)
        return None

    def _take(self, span: MessageSpan, key: Key) -> Range:
        piece = span.piece
        self._taken.add(piece)
        self._pieces.setdefault(key, []).append(piece)
        if span.state is SpanState.IN_FLIGHT:
            leases = self._judge.leases
            if not leases.complete:
                leases.resume(span, NOBODY, self._now_ms)
            leases.take(span.delivery, span.count)
        return piece

    def take_back(self) -> None:
        """The messages that must not be done before those which come again come again, too, uncounted."""
        if not self._given_back:
            return
        for span in self._judge.order.behind(self._given_back):
            parts = self._taken.missing(span.piece)
            spans = [span._replace(first=part.first, count=part.count) for part in parts]
            self._give_back(spans, 0, uncounted=True)

    def operations(self) -> tuple[GroupOperation, ...]:
        """All that the acts come to."""
        made: list[GroupOperation] = []
        for (kind, delivery, number, flag, text), pieces in self._pieces.items():
            ranges = joined(pieces)
            for at in range(0, len(ranges), MAX_ENTRY_RANGES):
                part = ranges[at : at + MAX_ENTRY_RANGES]
                if kind is Acknowledge:
                    made.append(Acknowledge(delivery, part))
                elif kind is Release:
                    made.append(Release(delivery, number, part, bool(flag)))
                else:
                    made.append(Die(delivery, ReasonCode(number), part, text, Fate(flag)))
        return tuple(made)


def _text_of(act: Act) -> bytes:
    """The reason, cut to what is kept; whole characters."""
    return act.reason.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
