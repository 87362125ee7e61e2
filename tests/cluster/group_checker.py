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
sought-over                something was given that a seek had left behind, or after a generation began that
                           nobody sought
letter-...                 see group_letters.py
out-of-order, two-owners, key-order, key-parallel   see group_order.py
owner-lingers              see group_sessions.py
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from group_history import Act, GroupHistory, Receive
from group_index import GroupIndex, Place
from group_letters import letter_anomalies
from group_order import order_anomalies
from group_sessions import session_anomalies
from log_history import EXAMPLES_MAX, NEVER, Anomaly

FORM_CODES = frozenset({"receipt-malformed", "receipt-forged", "receipt-of-another-group"})
"""Of receipts that no agent gave."""


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
        self._check_generations()
        self._check_drained()
        for rules in (letter_anomalies, order_anomalies, session_anomalies):
            for name, text in rules(self._index):
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
                elif given.due_us != record.due_us:
                    text = f"{receive.place}@{given.offset}: due {given.due_us}, not {record.due_us}"
                    self._note("wrong-record", text)

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
                elif not self._was_sought_between(first, again):
                    self._note("receive-differs", f"{first.request}: {self._at(first)}, {self._at(again)}")

    def _was_sought_between(self, first: Receive, again: Receive) -> bool:
        """Whether the group may have forgotten the request: a seek forgets all of its partition."""
        if again.place == first.place:
            return again.generation != first.generation
        return any(
            seek.invoked_at < again.completed_at
            and (seek.completed_at > first.invoked_at or seek.outcome == "info")
            for seek in self._index.seeks_at[first.place]
        )

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
                if before is not None and before[0].generation != receive.generation:
                    before, holes = None, 0
                where = f"{place}@{offset} {self._at(receive)}: attempt {attempt}"
                if most is not None and attempt > most:
                    self._note("attempt-over", f"{where} of {most}")
                least = 1 if before is None else self._least_attempt(place, offset, *before, receive)
                expected = 1 if before is None else before[1] + 1
                if attempt < least:
                    self._note("attempt-jump", f"{where}, not {least}")
                if before is not None and self._revived(place, offset, before[0], receive):
                    holes = 0
                    expected = min(expected, attempt)
                holes += max(attempt - expected, 0)
                if holes > self._index.lost_answers(place[0], receive.completed_at):
                    self._note("attempt-jump", f"{where}, not {expected}: no answer was lost")
                before = receive, attempt

    def _revived(self, place: Place, offset: int, before: Receive, receive: Receive) -> bool:
        return self._index.revived(place, offset, before.invoked_at, receive.completed_at)

    def _least_attempt(self, place: Place, offset: int, before: Receive, attempt: int, now: Receive) -> int:
        """The smallest number that the attempt after this one can have."""
        if self._revived(place, offset, before, now):
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
                    and second.generation == first.generation
                    and not self._index.returned(place, offset, first, second.completed_at)
                    and not self._revived(place, offset, first, second)
                    and not self._index.earlier_expires(place, offset, first, second.completed_at)
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
            for number, receive in enumerate(receives):
                act = self._acked(place, offset, receive)
                for later in receives[number + 1 :] if act is not None else ():
                    assert act is not None
                    if later.generation != receive.generation or self._may_live_again(
                        place, offset, act.invoked_at, later.completed_at
                    ):
                        continue
                    name = "void-taken" if later.completed_at < act.invoked_at else "acked-again"
                    self._note(
                        name,
                        f"{place}@{offset} done by {act.consumer} at {act.invoked_at:.3f} to "
                        f"{act.completed_at:.3f} of {receive.delivery}, given as {self._at(later)}",
                    )
                    break
            self._check_acked_twice(place, offset)
        for act in self._history.acts:
            if act.is_done and any(
                seek.generation > act.generation and seek.completed_at < act.invoked_at
                for seek in index.seeks_at[act.place]
            ):
                self._note("void-taken", f"{act}: its receipt is older than a seek")

    def _may_live_again(self, place: Place, offset: int, since: float, until: float) -> bool:
        """Whether a message that was done may have come back though nobody sought meanwhile: by a letter of
        an earlier generation. A letter of the same one was redriven before the message was done."""
        return bool(self._index.seeks_at[place]) and self._index.revived(place, offset, since, until)

    def _check_acked_twice(self, place: Place, offset: int) -> None:
        done = [act for act in self._index.acts_on[place, offset] if act.verb == "ack" and act.is_done]
        done = sorted((act for act in done if not act.is_whole), key=lambda act: act.generation)
        for first, second in pairwise(done):
            since = min(first.invoked_at, second.invoked_at)
            until = max(first.completed_at, second.completed_at)
            if first.generation == second.generation and not self._may_live_again(
                place, offset, since, until
            ):
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
        if act.code == "receipt-before-seek":
            return any(
                seek.invoked_at < act.completed_at and (seek.generation or NEVER) > act.generation
                for seek in index.seeks_at[place]
            )
        if offset < index.log_start.get(place, 0) or act.code not in {"receipt-used", "receipt-expired"}:
            return True
        if index.letters[place, offset]:
            return True
        earlier = [
            other
            for other in index.acts_on[place, offset]
            if other is not act
            and other.may_count
            and other.generation == act.generation
            and other.invoked_at < act.completed_at
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

    # ---- seeks -----------------------------------------------------------------------------------

    def _check_generations(self) -> None:
        """They rise with the log, each was begun by a seek, and gives what lies behind its place, or what
        died and came back."""
        index = self._index
        for place, deliveries in index.deliveries.items():
            newest = 0
            for _, receive in sorted(deliveries.items()):
                if receive.generation < newest or (
                    receive.generation > 1 and not index.begun_by(place, receive.generation)
                ):
                    self._note("sought-over", f"{place} {self._at(receive)}: generation {receive.generation}")
                newest = max(newest, receive.generation)
                for offset in receive.offsets:
                    if not index.may_have(place, receive.generation, offset) and not index.revived(
                        place, offset, float("-inf"), receive.completed_at
                    ):
                        sought = index.begun_by(place, receive.generation)
                        self._note("sought-over", f"{place}@{offset} {self._at(receive)}: {sought}")

    # ---- the end ---------------------------------------------------------------------------------

    def _check_drained(self) -> None:
        """Nothing is left that nobody is done with, but what retention took, as often as the group said."""
        index = self._index
        for end in self._history.drained:
            log = self._history.logs.get(end.partition, {})
            last = max(log, default=end.log_start_offset - 1)
            if end.position <= last and end.until_us is None:
                self._note("lost", f"{end.place} stands at {end.position}, the log ends at {last}")
            dead = self._index.terms(end.group).dead
            gone, left, rejected = 0, [], 0
            for offset in range(index.first_to_do(end.place, end.generation), last + 1):
                acts = [act for act in index.acts_on[end.place, offset] if act.generation == end.generation]
                if end.until_us is not None and log[offset].due_us > end.until_us:
                    continue
                if index.letters[end.place, offset] or any(
                    act.verb == "ack" and act.may_count for act in acts
                ):
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

    @staticmethod
    def _at(receive: Receive) -> str:
        return (
            f"{receive.delivery} to {receive.consumer} at {receive.invoked_at:.3f} to "
            f"{receive.completed_at:.3f}"
        )
