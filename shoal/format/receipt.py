"""Receipts of messages that a consumer group has delivered, as text. Pure.

The front door splits them by partition, the partition's leader verifies them, and clients only hand them
back. docs/formats.md has the layout. A receipt of a whole answer is a prefix, `g1`, and 40 bytes in base64url
without padding. That of one message has `.` and its offset behind it, on topics with due times `-` and the
due time too. The checksum covers the head alone: which messages belong to a delivery the group itself knows.
"""

from __future__ import annotations

import re
import struct
from base64 import urlsafe_b64encode
from binascii import Error, a2b_base64
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

PREFIX: Final = "g1"
_HEAD: Final = struct.Struct("<16sIIQ")  # group id, partition, generation, delivery
_MAC_BYTES: Final = 8
_PERSON: Final = b"shoal-rc"
HEAD_CHARACTERS: Final = 54
HEAD_TEXT: Final = len(PREFIX) + HEAD_CHARACTERS
"""Characters that all receipts of an answer share."""
MAX_RECEIPT_CHARACTERS: Final = HEAD_TEXT + 1 + 19 + 1 + 19
"""A message's receipt with the greatest offset and due time."""
_LAST: Final = 2**63 - 1
_HEAD_FORM: Final = re.compile(rf"[A-Za-z0-9_-]{{{HEAD_CHARACTERS - 1}}}[AQgw]", re.ASCII)
"""The last character holds two bits of the 40 bytes, and four that are zero."""
HEADS_KEPT: Final = 256
"""Texts that were read last: a receipt is parsed, and then its checksum is looked at."""
_PLACE_FORM: Final = re.compile(r"\.(0|[1-9][0-9]{0,18})(?:-([1-9][0-9]{0,18}))?", re.ASCII)
_TO_STANDARD: Final = str.maketrans("-_", "+/")


class Receipt(NamedTuple):
    """`delivery`: the number of the answer, unique in its partition. `offset` None: the whole answer.
    `due_us`: 0 on topics without due times."""

    group: bytes
    partition: int
    generation: int
    delivery: int
    offset: int | None
    due_us: int = 0

    @classmethod
    def up_to(cls, group: bytes, partition: int, offset: int) -> Receipt:
        """Not of a delivery: all that an owner holds up to this offset, the message there too."""
        return cls(group, partition, 0, 0, offset)


class ReceiptError(ValueError):
    """The text is no receipt. `code`: the outcome that is told."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def head_of(group: bytes, key: bytes, partition: int, generation: int, delivery: int) -> str:
    """The receipt of a whole answer; `receipt_of` makes those of its messages."""
    head = _HEAD.pack(group, partition, generation, delivery)
    return PREFIX + urlsafe_b64encode(head + _mac(head, key)).decode().rstrip("=")


def receipt_of(head: str, offset: int, due_us: int = 0) -> str:
    """The receipt of one message of the answer that has this head."""
    return f"{head}.{offset}-{due_us}" if due_us else f"{head}.{offset}"


def parse(text: str) -> Receipt:
    """Looks at the form only, and needs no key. Raises ReceiptError receipt-malformed."""
    head = _head_bytes(text)
    group, partition, generation, delivery = _HEAD.unpack_from(head)
    return Receipt(group, partition, generation, delivery, *place_of(text))


def place_of(text: str) -> tuple[int | None, int]:
    """The offset and due time behind the head; None and 0 for a whole answer. Raises ReceiptError."""
    if len(text) == HEAD_TEXT:
        return None, 0
    place = _PLACE_FORM.fullmatch(text, HEAD_TEXT)
    if place is None:
        raise ReceiptError(
            "receipt-malformed", f"{text[:80]!r}: behind the head stands .OFFSET or .OFFSET-DUE"
        )
    offset, due_us = int(place[1]), int(place[2] or 0)
    if offset > _LAST or due_us > _LAST:
        raise ReceiptError("receipt-malformed", f"{text[:80]!r}: the offset or the due time is too great")
    return offset, due_us


def is_genuine(text: str, key: bytes) -> bool:
    """Whether the group with this key made it. Raises ReceiptError receipt-malformed."""
    head = _head_bytes(text)
    return compare_digest(head[_HEAD.size :], _mac(head[: _HEAD.size], key))


@lru_cache(HEADS_KEPT)
def _head_bytes(text: str) -> bytes:
    form = text[len(PREFIX) : HEAD_TEXT]
    if not text.startswith(PREFIX) or len(text) > MAX_RECEIPT_CHARACTERS or not _HEAD_FORM.fullmatch(form):
        raise ReceiptError(
            "receipt-malformed", f"{text[:80]!r} is no receipt: use those of a receive as they are"
        )
    try:
        return a2b_base64(form.translate(_TO_STANDARD) + "==", strict_mode=True)
    except Error as error:
        raise ReceiptError("receipt-malformed", f"{text[:80]!r} is no receipt: {error}") from error


def _mac(head: bytes, key: bytes) -> bytes:
    return blake2b(head, digest_size=_MAC_BYTES, key=key, person=_PERSON).digest()
