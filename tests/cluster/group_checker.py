"""The anomalies that a history of consumer groups shows.

Law of this file: pure. It knows what clients saw (group_history.py) and the logs as they were in the end. It
never guesses: whatever nobody knows may have happened at any time after it was sent, and excuses what it
could explain. Deliveries have numbers in the order of the log, so most rules need no time.

acked-again, acked-twice   a message was acknowledged for certain, and was delivered, or acknowledged, later
void-taken                 an act counted for a delivery that another one had followed
lost                       a record was never done with by anybody, and the group has nothing more to give
wrong-record               a message is not what the log has at its offset
attempt-jump, attempt-over the attempts of a message leave a number out, repeat one, or pass the bound
in-two-hands               a message was delivered again while the one who had it had time left
receive-differs            a repeated request brought other messages, or one delivery went to two requests
over-limit, early          more messages than asked for; before they were due
receipt-refused            a good receipt was refused, and nothing explains it
letter-twice, letter-missing, letter-early   dead letters are not what died
out-of-order, two-owners, key-order, key-parallel   see group_order.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from group_history import RETURNING, Act, Change, GroupHistory, GroupTerms, Receive
from group_order import order_anomalies
from log_history import EXAMPLES_MAX, Anomaly, Partition

Place = tuple[str, Partition]
FORM_CODES = frozenset({"receipt-malformed", "receipt-forged", "receipt-of-another-group"})
"""Of receipts that no agent gave."""


class GroupIndex:
    """A history, by what the rules ask for."""

    def __init__(self, history: GroupHistory) -> None:
        self.history = history
        self.deliveries: dict[Place, dict[int, Receive]] = defaultdict(dict)
        """The first answer of each delivery, by its number."""
        self.of_message: dict[tuple[Place, int], list[Receive]] = defaultdict(list)
        """The deliveries of a message, in the log's order."""
        self.acts_on: dict[tuple[Place, int], list[Act]] = defaultdict(list)
        self.acts_at: dict[Place, list[Act]] = defaultdict(list)
        self.changes_at: dict[Place, list[Change]] = defaultdict(list)
        self.unanswered: dict[str, list[Receive]] = defaultdict(list)
        """Receives of a group that may have been served unseen."""
        self.log_start: dict[Place, int] = {item.place: item.log_start_offset for item in history.drained}
        for receive in history.answered():
            known = self.deliveries[receive.place].get(receive.delivery)
            if known is None or receive.invoked_at < known.invoked_at:
                self.deliveries[receive.place][receive.delivery] = receive
        for place, deliveries in self.deliveries.items():
            for _, receive in sorted(deliveries.items()):
                for offset in receive.offsets:
                    self.of_message[place, offset].append(receive)
        for act in history.acts:
            self.acts_at[act.place].append(act)
            for offset in act.offsets:
                self.acts_on[act.place, offset].append(act)
        for change in history.changes:
            if change.outcome != "fail":
                self.changes_at[change.place].append(change)
        for receive in history.receives:
            if receive.outcome == "info":
                self.unanswered[receive.group].append(receive)

    def terms(self, group: str) -> GroupTerms:
        """The settings of a group."""
        return self.history.terms.get(group) or GroupTerms()

    def lost_answers(self, group: str, before: float) -> int:
        """How many receives that were sent before then may have delivered something unseen."""
        return sum(item.invoked_at < before for item in self.unanswered[group])

    def changed(self, place: Place, since: float, until: float, *kinds: str) -> bool:
        """Whether an operator's change may have happened in between."""
        return any(
            change.invoked_at < until and (change.completed_at > since or change.outcome == "info")
            for change in self.changes_at[place]
            if not kinds or change.kind in kinds
        )

    def returned(self, place: Place, offset: int, delivery: Receive, until: float) -> bool:
        """Whether the one who had a message may have given it back before then; in an ordered group anybody's
        word about an earlier message may have done that."""
        if self.terms(place[0]).mode != "shared":
            acts = [act for act in self.acts_at[place] if act.verb in RETURNING]
        else:
            acts = [act for act in self.acts_on[place, offset] if act.delivery == delivery.delivery]
        return any(act.verb in RETURNING and act.may_count and act.invoked_at < until for act in acts)

    def holds_until(self, place: Place, offset: int, delivery: Receive) -> float:
        """No one else is to have the message before then, if it is not given back."""
        until = delivery.invoked_at + delivery.lease_s
        terms = self.terms(place[0])
        for act in self.acts_on[place, offset]:
            if act.verb == "extend" and act.delivery == delivery.delivery and act.may_count:
                until = min(until, act.invoked_at + act.lease_s)
        if terms.mode == "exclusive":
            until = min(until, delivery.invoked_at + terms.session_s)
            gone = [item for item in self.history.leaves if item.group == place[0]]
            until = min([until, *(item.invoked_at for item in gone if item.consumer == delivery.consumer)])
        return until


class GroupChecker:
    """Looks for every anomaly; `anomalies()` is empty for groups that kept their promises."""

    def __init__(self, history: GroupHistory) -> None:
        self._history = history
        self._index = GroupIndex(history)
        self._found: dict[str, list[str]] = defaultdict(list)

    def anomalies(self) -> list[Anomaly]:
        self._check_answers()
        self._check_repetitions()
        self._check_attempts()
        self._check_hands()
        self._check_acts()
        self._check_refusals()
        self._check_letters()
        self._check_drained()
        for name, text in order_anomalies(self._index):
            self._note(name, text)
        return [
            Anomaly(name, len(places), tuple(places[:EXAMPLES_MAX]))
            for name, places in sorted(self._found.items())
        ]

    def _note(self, name: str, text: str) -> None:
        self._found[name].append(text)

    # ---- receives --------------------------------------------------------------------------------

    def _check_answers(self) -> None:
        for receive in self._history.answered():
            count = len(receive.messages)
            if count > receive.limit:
                self._note("over-limit", f"{receive.consumer} wanted {receive.limit}, has {count}")
            assert receive.partition is not None
            log, start = (
                self._history.logs.get(receive.partition),
                self._index.log_start.get(receive.place, 0),
            )
            for given in receive.messages:
                if given.due_us > receive.delivered_at_us:
                    self._note("early", f"{receive.place}@{given.offset} {self._at(receive)}")
                if log is None or given.offset < start:
                    continue
                record = log.get(given.offset)
                if record is None or (given.value is not None and given.value != record.value):
                    has = None if record is None else record.value
                    self._note("wrong-record", f"{receive.place}@{given.offset}: {given.value}, not {has}")

    def _check_repetitions(self) -> None:
        """The same request brings what it brought before, less what has been acted on since."""
        by_request: dict[tuple[str, str, str], list[Receive]] = defaultdict(list)
        owner: dict[tuple[Place, int], tuple[str, str]] = {}
        for receive in sorted(self._history.answered(), key=lambda item: item.completed_at):
            asked = (receive.consumer, receive.request)
            known = owner.setdefault((receive.place, receive.delivery), asked)
            if known != asked:
                self._note("receive-differs", f"{receive.place} {receive.delivery} for {known} and {asked}")
            if receive.request:
                by_request[receive.group, receive.consumer, receive.request].append(receive)
        for answers in by_request.values():
            first = answers[0]
            for again in answers[1:]:
                if again.place == first.place and again.delivery == first.delivery:
                    self._check_repetition(first, again)
                elif not self._index.changed(first.place, first.invoked_at, again.completed_at, "seek"):
                    self._note("receive-differs", f"{first.request}: {self._at(first)}, {self._at(again)}")

    def _check_repetition(self, first: Receive, again: Receive) -> None:
        had = {given.offset: given for given in first.messages}
        for given in again.messages:
            if had.get(given.offset) != given:
                self._note("receive-differs", f"{first.request}: {given}, was {had.get(given.offset)}")
        index, place = self._index, first.place
        for offset in had.keys() - set(again.offsets):
            acts = [act for act in index.acts_on[place, offset] if act.may_count]
            is_explained = (
                any(act.invoked_at < again.completed_at for act in acts)
                or index.returned(place, offset, first, again.completed_at)
                or again.completed_at >= index.holds_until(place, offset, first)
                or offset < index.log_start.get(place, 0)
                or index.changed(place, first.invoked_at, again.completed_at)
            )
            if not is_explained:
                self._note("receive-differs", f"{first.request}: {place}@{offset} is missing at the second")

    def _check_attempts(self) -> None:
        """They rise by one a delivery; a number is left out only where an answer was lost, and comes twice
        only where the delivery was given back uncounted."""
        for (place, offset), receives in self._index.of_message.items():
            most, holes = self._index.terms(place[0]).max_attempts, 0
            before: tuple[Receive, int] | None = None
            for receive in receives:
                attempt = next(item.attempt for item in receive.messages if item.offset == offset)
                where = f"{place}@{offset} {self._at(receive)}: attempt {attempt}"
                if most is not None and attempt > most:
                    self._note("attempt-over", f"{where} of {most}")
                least = 1 if before is None else self._least_attempt(place, offset, *before, receive)
                expected = 1 if before is None else before[1] + 1
                if attempt < least:
                    self._note("attempt-jump", f"{where}, not {least}")
                if self._begins_anew(place, before, receive):
                    holes = 0
                    expected = min(expected, attempt)
                holes += max(attempt - expected, 0)
                if holes > self._index.lost_answers(place[0], receive.completed_at):
                    self._note("attempt-jump", f"{where}, not {expected}: no answer was lost")
                before = receive, attempt

    def _begins_anew(self, place: Place, before: tuple[Receive, int] | None, receive: Receive) -> bool:
        return before is not None and self._index.changed(place, before[0].invoked_at, receive.completed_at)

    def _least_attempt(self, place: Place, offset: int, before: Receive, attempt: int, now: Receive) -> int:
        """The smallest number that the attempt after this one can have."""
        if self._begins_anew(place, (before, attempt), now):
            return 1
        if self._index.terms(place[0]).mode != "shared":
            uncounted = True  # whatever comes again before it takes it back
        else:
            acts = [act for act in self._index.acts_on[place, offset] if act.delivery == before.delivery]
            uncounted = any(act.verb == "release" and act.may_count for act in acts)
        return attempt if uncounted else attempt + 1

    def _check_hands(self) -> None:
        """Nobody has a message while another one's lease runs: it runs from the commit, thus longer than from
        the sending of the receive."""
        for (place, offset), receives in self._index.of_message.items():
            for first, second in pairwise(receives):
                until = self._index.holds_until(place, offset, first)
                if (
                    second.completed_at < until
                    and not self._index.returned(place, offset, first, second.completed_at)
                    and not self._index.changed(place, first.invoked_at, second.completed_at)
                    and not self._acked(place, offset, first)
                ):
                    self._note(
                        "in-two-hands", f"{place}@{offset}: {self._at(second)} before {until:.3f} of {first}"
                    )

    # ---- acts ------------------------------------------------------------------------------------

    def _acked(self, place: Place, offset: int, delivery: Receive) -> Act | None:
        """The act by which the message of this delivery is done for certain."""
        for act in self._index.acts_on[place, offset]:
            if act.verb != "ack" or not act.is_done or act.delivery != delivery.delivery:
                continue
            if not act.is_whole or (
                act.completed_at < self._index.holds_until(place, offset, delivery)
                and not self._index.returned(place, offset, delivery, act.completed_at)
            ):
                return act
        return None

    def _check_acts(self) -> None:
        """An act counts for the newest delivery alone: whatever delivery of the message is later in the log
        came after it, and then the message was done; or before it, and then it was void."""
        index = self._index
        for (place, offset), receives in index.of_message.items():
            acked: Act | None = None
            for number, receive in enumerate(receives):
                act = self._acked(place, offset, receive)
                for later in receives[number + 1 :] if act is not None else ():
                    assert act is not None
                    if index.changed(place, act.invoked_at, later.completed_at):
                        continue
                    name = "void-taken" if later.completed_at < act.invoked_at else "acked-again"
                    self._note(
                        name,
                        f"{place}@{offset} done by {act.consumer} at {act.invoked_at:.3f} to "
                        f"{act.completed_at:.3f} of {receive.delivery}, given as {self._at(later)}",
                    )
                    break
                acked = acked or act
            self._check_acked_twice(place, offset)

    def _check_acked_twice(self, place: Place, offset: int) -> None:
        done = [act for act in self._index.acts_on[place, offset] if act.verb == "ack" and act.is_done]
        done = [act for act in done if not act.is_whole]
        for first, second in pairwise(done):
            since = min(first.invoked_at, second.invoked_at)
            until = max(first.completed_at, second.completed_at)
            if not self._index.changed(place, since, until):
                self._note("acked-twice", f"{place}@{offset}: {first} and {second}")

    def _check_refusals(self) -> None:
        """A receipt that an agent gave is refused only for what has happened since."""
        for act in self._history.acts:
            if act.outcome == "ok" and act.code is not None and not act.is_whole:
                for offset in act.offsets:
                    if not self._may_be_refused(act, offset):
                        self._note(
                            "receipt-refused",
                            f"{act.place}@{offset} of {act.delivery} by {act.consumer} at "
                            f"{act.completed_at:.3f}: {act.verb} {act.code}",
                        )

    def _may_be_refused(self, act: Act, offset: int) -> bool:
        index, place = self._index, act.place
        terms = index.terms(act.group)
        if act.code in FORM_CODES:
            return False
        if index.changed(place, float("-inf"), act.completed_at):
            return True
        if act.code == "receipt-before-seek":
            return False
        if offset < index.log_start.get(place, 0) or act.code not in {"receipt-used", "receipt-expired"}:
            return True
        earlier = [
            other
            for other in index.acts_on[place, offset]
            if other is not act and other.may_count and other.invoked_at < act.completed_at
        ]
        unseen = index.lost_answers(act.group, act.completed_at)
        if act.code == "receipt-expired":
            later = [item for item in index.of_message[place, offset] if item.delivery > act.delivery]
            return unseen > 0 or any(item.invoked_at < act.completed_at for item in later)
        delivered = [item for item in index.of_message[place, offset] if item.delivery >= act.delivery]
        attempts = [item.attempt for one in delivered for item in one.messages if item.offset == offset]
        may_be_dead = terms.max_attempts is not None and (
            max(attempts, default=0) + unseen >= terms.max_attempts
        )
        returned = any(index.returned(place, offset, one, act.completed_at) for one in delivered[:1])
        return bool(any(other.verb != "extend" for other in earlier) or may_be_dead or returned)

    # ---- the end ---------------------------------------------------------------------------------

    def _check_letters(self) -> None:
        """What died has one letter, and nothing else has any."""
        letters: Counter[tuple[Place, int]] = Counter()
        for letter in self._history.letters:
            place = letter.group, letter.partition
            letters[place, letter.offset] += 1
            most = self._index.terms(letter.group).max_attempts
            acts = [act for act in self._index.acts_on[place, letter.offset] if act.may_count]
            rejected = any(act.verb == "reject" for act in acts)
            if not rejected and (most is None or letter.attempts < most):
                self._note("letter-early", f"{letter}: neither rejected nor tried {most} times")
        for (place, offset), count in letters.items():
            again = len(self._index.changes_at[place])
            if count > 1 + again:
                self._note("letter-twice", f"{place}@{offset} has {count} letters")
            acked = [
                receive
                for receive in self._index.of_message[place, offset]
                if self._acked(place, offset, receive)
            ]
            if acked and not again:
                self._note("letter-twice", f"{place}@{offset} was done as {acked[0].delivery}, and has one")
        if not self._history.drained:
            return
        for act in self._history.acts:
            if self._index.terms(act.group).dead == "letter" and act.is_done and not act.is_whole:
                for offset in act.offsets:
                    if self._dies(act, offset) and not letters[act.place, offset]:
                        self._note("letter-missing", f"{act.place}@{offset} died of {act}")

    def _dies(self, act: Act, offset: int) -> bool:
        most = self._index.terms(act.group).max_attempts
        receive = self._index.deliveries[act.place].get(act.delivery)
        attempts = [item.attempt for item in receive.messages if item.offset == offset] if receive else []
        return act.verb == "reject" or (act.verb == "nack" and most is not None and attempts == [most])

    def _check_drained(self) -> None:
        """Nothing is left that nobody is done with, but what retention took, as often as the group said."""
        letters = {((item.group, item.partition), item.offset) for item in self._history.letters}
        for end in self._history.drained:
            log = self._history.logs.get(end.partition, {})
            last = max(log, default=end.log_start_offset - 1)
            if end.position <= last:
                self._note("lost", f"{end.place} stands at {end.position}, the log ends at {last}")
            dead = self._index.terms(end.group).dead
            gone, left, rejected = 0, [], 0
            for offset in range(end.begin, last + 1):
                acts = self._index.acts_on[end.place, offset]
                if any(act.verb == "ack" and act.may_count for act in acts):
                    continue
                if (end.place, offset) in letters or self._sought_over(end.place, offset):
                    continue
                if dead == "drop" and any(act.verb == "reject" and act.is_done for act in acts):
                    rejected += 1
                elif offset < end.log_start_offset:
                    gone += 1
                else:
                    left.append(offset)
            if len(left) > max(end.dropped - rejected, 0):
                self._note("lost", f"{end.place}: nobody is done with {left[:20]}")
            if gone > end.skipped + end.dropped:
                self._note("lost", f"{end.place}: {gone} are trimmed, {end.skipped} were skipped")

    def _sought_over(self, place: Place, offset: int) -> bool:
        """Whether a seek may have left the message behind."""
        return any(item.kind == "seek" and item.offset > offset for item in self._index.changes_at[place])

    @staticmethod
    def _at(receive: Receive) -> str:
        return (
            f"{receive.delivery} to {receive.consumer} at {receive.invoked_at:.3f} to "
            f"{receive.completed_at:.3f}"
        )
