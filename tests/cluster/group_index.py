"""A history of consumer groups, by what the rules of its checkers ask for.

Law of this file: pure, and it judges nothing. A seek begins another generation of a group in a partition:
each answer and each act names its own, so what a seek excuses is known exactly. Where a seek was never
answered, any of those may have begun a generation that nobody else did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict

from group_history import RETURNING, Act, Change, GroupHistory, GroupTerms, Receive
from log_history import NEVER, Partition

Place = tuple[str, Partition]


class GroupIndex:
    """See the head of this file."""

    def __init__(self, history: GroupHistory) -> None:
        self.history = history
        self.deliveries: dict[Place, dict[int, Receive]] = defaultdict(dict)
        """The first answer of each delivery, by its number."""
        self.of_message: dict[tuple[Place, int], list[Receive]] = defaultdict(list)
        """The deliveries of a message, in the log's order."""
        self.acts_on: dict[tuple[Place, int], list[Act]] = defaultdict(list)
        self._returning: dict[Place, list[Act]] = defaultdict(list)
        self.changes_at: dict[Place, list[Change]] = defaultdict(list)
        self.seeks_at: dict[Place, list[Change]] = defaultdict(list)
        self.unanswered: dict[str, list[Receive]] = defaultdict(list)
        """Receives of a group that may have been served unseen."""
        self.log_start: dict[Place, int] = {item.place: item.log_start_offset for item in history.drained}
        self.letters: Counter[tuple[Place, int]] = Counter()
        for receive in history.answered():
            known = self.deliveries[receive.place].get(receive.delivery)
            if known is None or receive.invoked_at < known.invoked_at:
                self.deliveries[receive.place][receive.delivery] = receive
        for place, deliveries in self.deliveries.items():
            for _, receive in sorted(deliveries.items()):
                for offset in receive.offsets:
                    self.of_message[place, offset].append(receive)
        for act in history.acts:
            if act.verb in RETURNING:
                self._returning[act.place].append(act)
            for offset in act.offsets:
                self.acts_on[act.place, offset].append(act)
        for change in history.changes:
            if change.outcome != "fail":
                (self.seeks_at if change.kind == "seek" else self.changes_at)[change.place].append(change)
        for receive in history.receives:
            if receive.outcome == "info":
                self.unanswered[receive.group].append(receive)
        for letter in history.letters:
            self.letters[(letter.group, letter.partition), letter.offset] += 1
        self._begin = {item.place: item.begin for item in history.drained}
        self._seen: dict[tuple[Place, str], list[tuple[float, float]]] = defaultdict(list)
        self._note_presences()

    def _note_presences(self) -> None:
        for receive in self.history.receives:
            if receive.outcome == "ok" and receive.partition is not None:
                times = receive.invoked_at, receive.completed_at
                self._seen[receive.place, receive.consumer].append(times)
        for presence in self.history.presences:
            for partition in presence.heard:
                times = presence.invoked_at, presence.completed_at
                self._seen[(presence.group, partition), presence.consumer].append(times)
        for seen in self._seen.values():
            seen.sort()

    def terms(self, group: str) -> GroupTerms:
        """The settings of a group."""
        return self.history.terms.get(group) or GroupTerms()

    def lost_answers(self, group: str, before: float) -> int:
        """How many receives that were sent before then may have delivered something unseen."""
        return sum(item.invoked_at < before for item in self.unanswered[group])

    # ---- what operators did ----------------------------------------------------------------------

    def begun_by(self, place: Place, generation: int) -> list[Change]:
        """The seeks of which one began the generation."""
        seeks = self.seeks_at[place]
        known = [seek for seek in seeks if seek.generation == generation]
        return known or [seek for seek in seeks if not seek.generation]

    def may_have(self, place: Place, generation: int, offset: int) -> bool:
        """Whether the group, as a generation began, was still to have the message."""
        return generation == 1 or any(seek.least <= offset for seek in self.begun_by(place, generation))

    def first_to_do(self, place: Place, generation: int) -> int:
        """From here on everything is to be done in the generation for certain."""
        if generation == 1:
            return self._begin.get(place, 0)
        return max((seek.offset for seek in self.begun_by(place, generation)), default=0)

    def revived(self, place: Place, offset: int, since: float, until: float) -> bool:
        """Whether an operator may have brought the message back in between though it had died."""
        return any(
            (change.kind == "decide" or self.letters[place, offset] > 0)
            and change.invoked_at < until
            and (change.completed_at > since or change.outcome == "info")
            for change in self.changes_at[place]
        )

    # ---- who has what ----------------------------------------------------------------------------

    def returned(self, place: Place, offset: int, delivery: Receive, until: float) -> bool:
        """Whether the one who had a message may have given it back before then; in an ordered group anybody's
        word about an earlier message may have done that."""
        if self.terms(place[0]).mode == "shared":
            acts = [act for act in self.acts_on[place, offset] if act.delivery == delivery.delivery]
        else:
            acts = [act for act in self._returning[place] if _may_follow(act, delivery)]
        return any(act.verb in RETURNING and act.may_count and act.invoked_at < until for act in acts)

    def holds_until(self, place: Place, offset: int, delivery: Receive) -> float:
        """No one else is to have the message before then, if it is not given back."""
        until = self._lease_until(place, offset, delivery)
        terms = self.terms(place[0])
        if terms.mode == "exclusive":
            gone = [item for item in self.history.leaves if item.group == place[0]]
            until = min([until, *(item.invoked_at for item in gone if item.consumer == delivery.consumer)])
            until = min(until, self.session_until(place, delivery, until))
        return until

    def earlier_expires(self, place: Place, offset: int, delivery: Receive, until: float) -> bool:
        """Whether a message before this one, in the same hands of an ordered group, may come again before
        then, since its lease has ended: it takes this one along."""
        if self.terms(place[0]).mode == "shared":
            return False
        return any(
            other.consumer == delivery.consumer
            and other.delivery <= delivery.delivery
            and any(
                before < offset and delivery.invoked_at < self._lease_until(place, before, other) < until
                for before in other.offsets
            )
            for other in self.deliveries[place].values()
        )

    def _lease_until(self, place: Place, offset: int, delivery: Receive) -> float:
        until = delivery.invoked_at + delivery.lease_s
        for act in self.acts_on[place, offset]:
            if act.verb == "extend" and act.delivery == delivery.delivery and act.may_count:
                until = min(until, act.invoked_at + act.lease_s)
        return until

    def session_until(self, place: Place, delivery: Receive, enough: float) -> float:
        """The one who was given this is there for certain until then, or until `enough`. What it said later
        counts if the same leader heard it while it was there: where nobody knows who led, it does not."""
        session_s = self.terms(place[0]).session_s
        until = delivery.invoked_at + session_s
        if self.history.led is None:
            return until
        begun = self.history.led.get(place[1], [])
        after = bisect_right(begun, delivery.invoked_at)
        steady_until = begun[after] if after < len(begun) else NEVER
        seen = self._seen[place, delivery.consumer]
        for number in range(bisect_right(seen, (delivery.invoked_at, NEVER)), len(seen)):
            invoked_at, completed_at = seen[number]
            if until >= enough or invoked_at >= until:
                break
            if completed_at < min(until, steady_until):
                until = max(until, invoked_at + session_s)
        return until


def _may_follow(act: Act, delivery: Receive) -> bool:
    return act.outcome == "info" or act.completed_at > delivery.invoked_at
