"""The values of a receive: what a front door asks of a consumer group, and what it gets.

Law of this file: values only. agent/groups/leader/group_leader.py decides who gets which messages.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple, NewType

from shoal.format.batch import LogIdentity
from shoal.format.receipt import Receipt

GroupKey = NewType("GroupKey", bytes)
"""A group's id: 16 random bytes of the catalog. Never its name."""

NOBODY: Final = bytes(16)
"""The hash of a consumer, an instance or a request that has no name."""


DELIVERIES: Final = 8_192
"""Answers that one entry can give, at most: the number of a delivery is the entry's log index times this, and
the answer's number in the entry. So it is unique for ever, and says which entry must be committed."""


def entry_of(delivery: int) -> int:
    """The log index of the entry that holds a delivery."""
    return delivery // DELIVERIES


class DuePlace(NamedTuple):
    """A message's place in the order of its partition. `due_us`: 0 in a topic without due times."""

    due_us: int
    offset: int


class Range(NamedTuple):
    """Neighbouring messages of one due time: offsets `first` to `first + count - 1`."""

    due_us: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a range

    @property
    def begin(self) -> DuePlace:
        """The first message's place."""
        return DuePlace(self.due_us, self.first)

    @property
    def end(self) -> DuePlace:
        """The place behind the last message."""
        return DuePlace(self.due_us, self.first + self.count)


class GroupMode(StrEnum):
    """The order that a group keeps, and among how many consumers."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    KEY_ORDERED = "key-ordered"


class Wanted(NamedTuple):
    """One receive. `consumer`, `instance`, `request`: hashes of 16 bytes (blake2b of the names), NOBODY for
    none. `promise`: the number of a promise that it redeems, 0 for none. `name`: of the consumer, for people.
    """

    consumer: bytes
    instance: bytes
    request: bytes
    limit: int
    max_bytes: int
    lease_ms: int
    promise: int = 0
    name: str = ""


class DeliveredRange(NamedTuple):
    """Messages of an answer, and which attempt theirs is."""

    range: Range
    attempt: int


class Granted(NamedTuple):
    """The answer to a receive. `delivery`: its number (see DELIVERIES), of an entry that was appended at
    `time_us`. `refusal`: why there is no message, else empty. `outcomes`: of the acts, in their order. `log`:
    the messages', if it is known."""

    delivered: tuple[DeliveredRange, ...]
    delivery: int
    generation: int
    time_us: int
    refusal: str
    outcomes: tuple[str | None, ...]
    log: LogIdentity | None = None
    log_start_offset: int = 0


class ActKind(Enum):
    """A consumer's word about messages that it has received."""

    ACK = "ack"  # done
    NACK = "nack"  # failed: again after a delay, which counts as an attempt
    RELEASE = "release"  # not begun: again at once, which counts as none
    REJECT = "reject"  # hopeless: not again
    EXTEND = "extend"  # still at work
    UP_TO = "up-to"  # done, with all that the owner holds before it; exclusive mode only


class Act(NamedTuple):
    """`delay_ms`: of a nack, None for the group's setting; of an extend, from now on. `reason`: for people.
    `consumer`: whose messages an UP_TO speaks of; its receipt is Receipt.up_to(...)."""

    kind: ActKind
    receipt: Receipt
    delay_ms: int | None = None
    reason: str = ""
    consumer: bytes = NOBODY


class Question(NamedTuple):
    """Somebody waits for messages: is there one? `number`: the leader's, once it has been asked. `limit`: how
    many the one who asks would take. The rest is as in Wanted."""

    consumer: bytes
    instance: bytes
    request: bytes
    limit: int = 1
    number: int = 0
    name: str = ""


class Promise(NamedTuple):
    """The answer: messages are kept for the receive that brings the number. `repeat`: the request was served
    before, and would get the same again."""

    partition: int
    number: int
    repeat: bool = False


class ConsumerNumbers(NamedTuple):
    """`holds`: messages in flight. `seen_ms`: how long ago it was heard of."""

    consumer: bytes
    name: str
    holds: int
    seen_ms: int


class Blocker(NamedTuple):
    """The first message that is not done where others fill the window. `key_hash`: of its key."""

    key_hash: int
    place: DuePlace


class GroupNumbers(NamedTuple):
    """One group in one partition, for people. Messages: `lag` are not done, of these `in_flight`, `delayed`,
    `dying` and `stopped` have been given before. `dead`: all that became letters, of which `letters` wait to
    be stored. `position`: the first that is not done. `window`: why nothing more is given, else empty.
    `blocked_by`: the message whose key everything waits for. `owner`: NOBODY for none."""

    generation: int
    position: DuePlace
    next: DuePlace
    end: DuePlace
    lag: int
    in_flight: int
    delayed: int
    dying: int
    stopped: int
    letters: int
    dead: int
    acked: int
    skipped: int
    dropped: int
    window: str
    blocked_by: Blocker | None
    owner: bytes
    consumers: tuple[ConsumerNumbers, ...]


class StoppedAction(Enum):
    """The fate of messages that were stopped."""

    RETRY = "retry"
    LETTER = "letter"
    DROP = "drop"


class SeekTo(NamedTuple):
    """The group goes on from `place`; None: from the log's end."""

    place: DuePlace | None


class BeginAt(NamedTuple):
    """The group begins in this partition, at `place`; None: at the log's end."""

    place: DuePlace | None


class Redrive(NamedTuple):
    """Dead letters come again, at most `limit` of them; None: all."""

    limit: int | None


class DecideStopped(NamedTuple):
    """An operator has decided about the stopped messages of a range."""

    range: Range
    action: StoppedAction


PlaceChange = SeekTo | BeginAt | Redrive | DecideStopped
"""A change by an operator, in one partition of a group."""
