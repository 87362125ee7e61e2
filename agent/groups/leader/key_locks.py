"""The order of keys: a message is given when every message of its key before it is done, or given with it.

Law of this file: pure. A key lives in one partition, so its leader orders it alone: no consumer owns keys,
and joining or leaving changes nothing. The keys of undone messages are kept as 64-bit hashes, in a window
that begins at the first of them. Two keys of one hash only wait for one another. A new leader reads the keys
of all undone messages again before it gives any.

Messages of one key may go together in one answer, in order. While one of them is in a consumer's hands, no
other of that key is given. Null keys (0) never wait. Keys are read some thousands a turn.

Invariant: the undone messages before one that is given have other hashes, or stand in the same answer.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from shoal.agent.groups.leader.bounds import BYTES_FOR_NEW, SPANS_FOR_NEW
from shoal.agent.groups.leader.candidates import Eligible, Feed, FeedNotReady, Picked, Retries
from shoal.agent.groups.leader.leases import Leases
from shoal.agent.groups.partition_group import MAX_SPANS, PartitionGroup
from shoal.agent.groups.place import START, MessageSpan, RangeSet, SpanState, between, joined
from shoal.agent.groups.spans import SPAN_BYTES
from shoal.agent.receive import Blocker, DuePlace, Range

KEY_WINDOW: Final = 65_536
"""Undone messages whose keys are known. Behind so many that wait for one another nothing is given."""
MAX_PASSED: Final = 4_096
"""Messages with due times that are read and in no span yet: their ranges fit into one entry."""
CHUNK_MESSAGES: Final = 1_024
"""Keys that are read at once."""
KEYS_A_TURN: Final = 8_192
"""Read in some 20 ms; the others are read in the next turns."""
KEYED_MESSAGES: Final = 4_096
"""Of one answer: each is looked at by itself. So one that comes back takes no more along, either."""
_GONE: Final = frozenset((SpanState.DONE, SpanState.DYING))


class KeyOrder:
    """A window of undone messages, and which of them wait for which."""

    most_at_once = KEYED_MESSAGES

    def __init__(
        self,
        group: PartitionGroup,
        feed: Feed,
        retries: Retries,
        leases: Leases,
        fits: Callable[[int], bool],
    ) -> None:
        self._group = group
        self._feed = feed
        self._retries = retries
        self._leases = leases
        self._fits = fits
        self.is_reading = False
        self._turn_ms = -1
        self._keys_left = 0  # to be read in this turn
        self._hashes: dict[DuePlace, int] = {}
        self._chains: dict[int, deque[DuePlace] | DuePlace] = {}
        self._in_hand: dict[int, set[DuePlace]] = {}
        self._grown: set[int] = set()  # chains that have new members
        self._heads: list[DuePlace] = []  # the first of each chain that may be free; some are stale
        self._unspanned: list[DuePlace] = []  # ascending
        self._unread: deque[Range] = deque()  # messages in spans whose keys are not known yet
        self._read_to = START

    def pick(
        self, limit: int, ranges: int, now_ms: int, append_us: int, *, again_only: bool = False
    ) -> Picked:
        """See GroupOrder. Raises FeedNotReady while the keys are being read."""
        self._begin_turn(now_ms)
        self._read_spans(now_ms)
        while self._read_to < self._group.next and self._read_more(append_us):
            pass  # so that what waited comes before what was given behind it
        self._grown.clear()
        chosen: list[Eligible] = []
        kept: list[DuePlace] = []
        followers: dict[DuePlace, Iterator[DuePlace]] = {}
        ends: dict[int, DuePlace] = {}  # chosen messages, none known behind them when they were
        while limit:
            if not self._heads:
                self._find_heads(append_us, once=bool(chosen))
                for grown in self._grown & ends.keys():
                    self._go_on(grown, ends.pop(grown), followers)
                self._grown.clear()
            if not self._heads:
                break
            place = heappop(self._heads)
            hashed = self._hashes.get(place)
            if hashed is None or (kept and kept[-1] == place):
                continue
            chain = followers.get(place)
            if hashed and chain is None and (self._head(hashed) != place or hashed in self._in_hand):
                continue  # a message of its key must be done first
            candidate = self._candidate(place, now_ms, append_us)
            if candidate is None:
                continue
            kept.append(place)
            if again_only and self._group.spans.at(place) is None:
                continue  # those of its key wait for it
            if not _append(chosen, candidate, ranges):
                break
            limit -= 1
            if chain is None:
                members = self._chains[hashed] if hashed else place
                chain = iter(()) if isinstance(members, DuePlace) else islice(members, 1, None)
            follower = next(chain, None)
            if follower is not None:
                followers[follower] = chain
                heappush(self._heads, follower)
            elif hashed:
                ends[hashed] = place
        for place in kept:
            heappush(self._heads, place)
        messages = self._group.spans.messages
        given = messages[SpanState.IN_FLIGHT] + messages[SpanState.WAITING]
        return Picked(chosen, blocked=not chosen and len(self._hashes) > given)

    def _begin_turn(self, now_ms: int) -> None:
        if now_ms != self._turn_ms:
            self._turn_ms = now_ms
            self._keys_left = KEYS_A_TURN
            self.is_reading = False

    def _spend(self, keys: int) -> None:
        """Read so many. Raises FeedNotReady if enough were read in this turn."""
        if self._keys_left <= 0 < keys:
            self.is_reading = True
            raise FeedNotReady
        self._keys_left -= keys

    def _go_on(self, hashed: int, end: DuePlace, followers: dict[DuePlace, Iterator[DuePlace]]) -> None:
        """Messages of a key became known behind one that is chosen already."""
        chain = self._chains[hashed]
        assert isinstance(chain, deque)
        behind = islice(chain, chain.index(end) + 1, None)
        follower = next(behind, None)
        if follower is not None:
            followers[follower] = behind
            heappush(self._heads, follower)

    def _head(self, hashed: int) -> DuePlace:
        chain = self._chains[hashed]
        return chain if isinstance(chain, DuePlace) else chain[0]

    def _candidate(self, place: DuePlace, now_ms: int, append_us: int) -> Eligible | None:
        """The message, if its own state lets it be given."""
        piece = _single(place)
        span = self._group.spans.at(place)
        if span is None:
            return Eligible(piece, 0)
        for loose in self._retries.loose(piece, now_ms, append_us):
            if not self._retries.is_spent(loose):
                return Eligible.of(loose)
        return None

    def given(self, picked: Sequence[Eligible]) -> tuple[Range, ...]:
        """See GroupOrder."""
        for candidate in picked:
            self.held(candidate.range)
        if not self._unspanned or not picked:
            return ()
        last = max(candidate.range.end for candidate in picked)
        given = RangeSet(candidate.range for candidate in picked)
        passed = [place for place in self._unspanned if place < last and place not in given]
        self._unspanned = [place for place in self._unspanned if place >= last]
        return joined(map(_single, passed))

    def noted(self, pieces: Sequence[Range], now_ms: int) -> None:
        """See GroupOrder."""
        self._begin_turn(now_ms)
        if self._unread:
            with suppress(FeedNotReady):  # the next pick tells
                self._read_spans(now_ms)
        for piece in pieces:
            self.released(piece)
        self._retries.due.clear()
        self._retries.ended.clear()

    def held(self, piece: Range) -> None:
        """The messages are in a consumer's hands."""
        for place in self._known(piece):
            if hashed := self._hashes[place]:
                self._in_hand.setdefault(hashed, set()).add(place)

    def released(self, piece: Range) -> None:
        """The messages are in nobody's hands, and not done."""
        woken: set[int] = set()
        for place in self._known(piece):
            if hashed := self._hashes[place]:
                self._let_go(place, hashed)
                woken.add(hashed)
            else:
                heappush(self._heads, place)
        for hashed in woken:
            heappush(self._heads, self._head(hashed))

    def done(self, piece: Range) -> None:
        """See GroupOrder."""
        woken: set[int] = set()
        for place in list(self._known(piece)):
            if hashed := self._hashes.pop(place):
                self._let_go(place, hashed)
                self._unchain(place, hashed)
                woken.add(hashed)
        for hashed in woken:
            if hashed in self._chains:
                heappush(self._heads, self._head(hashed))

    def _let_go(self, place: DuePlace, hashed: int) -> None:
        hands = self._in_hand.get(hashed)
        if hands is not None:
            hands.discard(place)
            if not hands:
                del self._in_hand[hashed]

    def _unchain(self, place: DuePlace, hashed: int) -> None:
        chain = self._chains[hashed]
        if isinstance(chain, DuePlace):
            assert chain == place, (chain, place)
            del self._chains[hashed]
        elif chain[0] == place:
            chain.popleft()
        else:
            chain.remove(place)
        if isinstance(chain, deque) and not chain:
            del self._chains[hashed]

    def _known(self, piece: Range) -> Iterable[DuePlace]:
        """The messages of the piece whose keys are known, undone until now."""
        if piece.count > len(self._hashes):
            return [place for place in self._hashes if piece.begin <= place < piece.end]
        return [place for place in _places(piece) if place in self._hashes]

    def behind(self, spans: Sequence[MessageSpan]) -> list[MessageSpan]:
        """See GroupOrder. Nothing for keys that are not known yet: those come again when their leases end."""
        firsts: dict[int, DuePlace] = {}
        named = RangeSet(span.piece for span in spans)
        for span in spans:
            for place in self._known(span.piece):
                if hashed := self._hashes[place]:
                    firsts[hashed] = min(place, firsts.get(hashed, place))
        places = [
            place
            for hashed, first in firsts.items()
            for place in self._in_hand.get(hashed, ())
            if place > first and place not in named
        ]
        return [
            span
            for piece in joined(map(_single, places))
            for span in self._group.spans.overlapping(piece)
            if span.state is SpanState.IN_FLIGHT
        ]

    def taken_along(self, place: DuePlace) -> tuple[int, int]:
        """See GroupOrder: by the hash of its key."""
        hashed = self._hashes.get(place, 0)
        return hashed, len(self._in_hand.get(hashed, ())) if hashed else 0

    def reset(self) -> None:
        """See GroupOrder: all keys are read again."""
        for known in (self._hashes, self._chains, self._in_hand, self._grown):
            known.clear()
        for places in (self._heads, self._unspanned, self._unread):
            places.clear()
        self._unread.extend(
            span.piece for span in self._group.spans.from_place(START) if span.state not in _GONE
        )
        self._read_to = self._group.floor

    def blocked_by(self) -> Blocker | None:
        """See GroupOrder."""
        if len(self._hashes) < KEY_WINDOW:
            return None
        place = min(self._hashes)
        return Blocker(self._hashes[place], place)

    def _read_spans(self, now_ms: int) -> None:
        """The keys of messages that were given before."""
        while self._unread:
            piece = self._unread[0]
            count = min(piece.count, CHUNK_MESSAGES)
            chunk = piece._replace(count=count)
            self._spend(count)
            hashes = self._feed.keys(chunk)
            for span in self._group.spans.overlapping(chunk):
                if span.state in _GONE:
                    continue
                skipped = span.first - chunk.first
                self._insert(span.piece, hashes[skipped : skipped + span.count])
                if span.state is SpanState.IN_FLIGHT:
                    for held, has_ended in self._leases.split(span, now_ms):
                        if not has_ended:
                            self.held(held)
            if count == piece.count:
                self._unread.popleft()
            else:
                self._unread[0] = Range(piece.due_us, piece.first + count, piece.count - count)

    def _find_heads(self, append_us: int, *, once: bool) -> None:
        """Read new keys until a message may be free. `once`: there is something to give, so try little."""
        try:
            while not self._heads and self._read_more(append_us):
                if once:
                    return
        except FeedNotReady:
            if not once:
                raise

    def _read_more(self, append_us: int) -> bool:
        """The keys of some new messages. False: there are no more, no room, or they cannot be read now."""
        room = min(KEY_WINDOW - len(self._hashes), CHUNK_MESSAGES)
        if self._group.by_due:
            # Those that are passed over for others become spans, each one of its own at worst.
            spans = len(self._unspanned)
            room = min(room, min(MAX_PASSED, MAX_SPANS - SPANS_FOR_NEW - self._group.spans_taken) - spans)
            if not self._fits((spans + room) * SPAN_BYTES + BYTES_FOR_NEW):
                room = 0
        self._read_to = max(self._read_to, self._group.floor)
        pieces = self._feed.new(self._read_to, room, append_us) if room > 0 else []
        self._spend(sum(piece.count for piece in pieces))
        return bool(pieces) and all(self._read(piece) for piece in pieces)

    def _read(self, piece: Range) -> bool:
        """The keys of a piece behind all that was read. False: the messages before it cannot be read now."""
        group, before = self._group, self._read_to
        if not group.by_due and piece.begin > before and group.new_parts(between(before, piece.begin)):
            return False
        for part in group.new_parts(piece):
            self._insert(part, self._feed.keys(part))
            if group.by_due:
                self._unspanned += _places(part)
            self._read_to = part.end  # the next part's keys may not be there yet
        self._read_to = piece.end
        return True

    def _insert(self, piece: Range, hashes: Sequence[int]) -> None:
        for place, hashed in zip(_places(piece), hashes, strict=True):
            self._hashes[place] = hashed
            chain = self._chains.get(hashed) if hashed else None
            if chain is None:
                if hashed:
                    self._chains[hashed] = place
                heappush(self._heads, place)
            elif isinstance(chain, DuePlace):
                self._chains[hashed] = deque(sorted((chain, place)))
            elif place > chain[-1]:
                chain.append(place)
            else:
                insort(chain, place)
            if chain is not None:
                self._grown.add(hashed)
            if chain is not None and self._head(hashed) == place:
                heappush(self._heads, place)

    def check_invariants(self, now_ms: int) -> None:
        """The chains hold the keyed messages, in order, and hands hold what is in flight under a lease."""
        chained: dict[DuePlace, int] = {}
        chains: dict[int, list[DuePlace]] = {}
        for hashed, chain in self._chains.items():
            places = chains[hashed] = [chain] if isinstance(chain, DuePlace) else list(chain)
            assert places == sorted(set(places)), places
            chained |= dict.fromkeys(places, hashed)
        assert chained == {place: hashed for place, hashed in self._hashes.items() if hashed}
        for span in self._group.spans.from_place(START):
            if span.state is not SpanState.IN_FLIGHT:
                continue
            for held, has_ended in self._leases.split(span, now_ms):
                for place in self._known(held) if not has_ended else ():
                    hashed = self._hashes[place]
                    assert not hashed or place in self._in_hand[hashed], f"{place} is in nobody's hands"
        for hashed, hands in self._in_hand.items():
            chain_of_key = chains[hashed]
            for place in hands:
                spans = [self._group.spans.at(one) for one in chain_of_key if one < place]
                assert all(spans), f"a message of {hashed:x} before {place} was not given"


def _single(place: DuePlace) -> Range:
    return Range(place.due_us, place.offset, 1)


def _places(piece: Range) -> Iterator[DuePlace]:
    return (DuePlace(piece.due_us, offset) for offset in range(piece.first, piece.first + piece.count))


def _append(chosen: list[Eligible], candidate: Eligible, ranges: int) -> bool:
    """Add one message, to the range before it if it continues that. False: no range is left for it."""
    if chosen:
        last = chosen[-1]
        alike = (last.attempts, last.delivery) == (candidate.attempts, candidate.delivery)
        if alike and last.range.end == candidate.range.begin:
            chosen[-1] = last._replace(range=last.range._replace(count=last.range.count + 1))
            return True
    if len(chosen) >= ranges:
        return False
    chosen.append(candidate)
    return True
