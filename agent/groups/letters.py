"""Dead letters: the headers that tell a message's history, and the producer that makes each appear once.

Law of this file: pure. A letter is appended to the dead-letter topic as one message with one sequence, its
ordinal. Every leader of the partition computes the producer alike. So the topic's own table of
sequences keeps a letter from being there twice.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from shoal.agent.groups.entry import ReasonCode
from shoal.agent.groups.place import Letter
from shoal.agent.receive import GroupKey
from shoal.format.timestamps import format_time

LETTER_HEADER: Final = "shoal-letter"
LOST_HEADER: Final = "shoal-lost"
"""Its value is `true` on a letter whose record could not be read any more: its value is null."""
DUE_HEADER: Final = "shoal-due"
OFFSET_HEADER: Final = "shoal-offset"
HISTORY_HEADERS: Final = frozenset(
    (
        "shoal-topic",
        "shoal-partition",
        OFFSET_HEADER,
        "shoal-group",
        "shoal-attempts",
        "shoal-reason",
        "shoal-first-delivered",
        "shoal-last-delivered",
        "shoal-died",
        LETTER_HEADER,
        LOST_HEADER,
        DUE_HEADER,
    )
)
"""All that a letter has beside the headers of its message."""
REASON_WORDS: Final = {
    ReasonCode.NACK: "nack",
    ReasonCode.EXPIRED: "expired",
    ReasonCode.REJECTED: "rejected",
    ReasonCode.OPERATOR: "operator",
}


def headers_of(letter: Letter, topic: str, partition: int, group: str) -> list[tuple[str, bytes]]:
    """The headers that are added to a dead message. Times are RFC 3339; `shoal-reason` is a word for
    the code, and behind it the consumer's own text, if it gave one."""
    texts = {
        "shoal-topic": topic,
        "shoal-partition": str(partition),
        OFFSET_HEADER: str(letter.offset),
        "shoal-group": group,
        "shoal-attempts": str(letter.attempts),
        "shoal-reason": reason_of(letter.code, letter.text),
        "shoal-first-delivered": format_time(letter.first_us),
        "shoal-last-delivered": format_time(letter.last_us),
        "shoal-died": format_time(letter.died_us),
        LETTER_HEADER: str(letter.ordinal),
    }
    if letter.due_us:
        texts[DUE_HEADER] = format_time(letter.due_us)
    return [(name, text.encode()) for name, text in texts.items()]


def reason_of(code: int, text: bytes) -> str:
    """A word for the code, and behind it the consumer's own text, if it gave one."""
    word = REASON_WORDS[ReasonCode(code)]
    return f"{word}: {text.decode()}" if text else word


def producer_of(group: GroupKey, partition: int) -> bytes:
    """The producer id of a partition's letters, alike on every replica."""
    return sha256(b"dead" + group + partition.to_bytes(4, "little")).digest()[:16]


def redrive_producer_of(group: GroupKey, partition: int) -> bytes:
    """The producer id of letters that come back as new records."""
    return sha256(b"redrive" + group + partition.to_bytes(4, "little")).digest()[:16]


def sequence_of(letter: Letter) -> int:
    """The letter's sequence within its producer's first epoch: sequences begin at 0, ordinals at 1."""
    return letter.ordinal - 1
