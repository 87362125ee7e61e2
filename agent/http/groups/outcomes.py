"""Receipts of a request: split by partition, verified, and what became of each.

Law of this file: form and genuineness are checked here, by the group's key; whether a receipt is still good
only the partition's leader knows. Receipts of one answer share their head, which is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.agent.http.groups.bodies import ActBody, name_hash
from shoal.agent.interface import Act, ActKind, Group, Json
from shoal.errors import ShoalError, shown
from shoal.format import receipt as receipts
from shoal.format.receipt import Receipt, ReceiptError

SLICE_RECEIPTS = 2_000
"""Read in one turn of the loop: some milliseconds."""
DETAILS = {
    "receipt-malformed": "this is no receipt: use those of a receive as they are",
    "receipt-forged": "this group has made no such receipt",
    "receipt-of-another-group": "the receipt is of another group, topic or partition",
    "receipt-before-seek": "the group was sought elsewhere since: the message may come again",
    "receipt-expired": "the message was delivered again since: its newest receipt counts",
    "receipt-used": "the message is done, or was given back, already",
    "not-held": "the message is not in flight",
    "too-fragmented": "the group remembers as many gaps as it can: ack what came before, or whole answers",
    "letters-full": "as many dead letters wait to be stored as there may be: try again later",
    "bad-delay": "the delay is out of its bounds",
}
"""What each outcome means. An outcome may have an error's code, too: of a partition that did not answer."""
OF_ANSWERS = {
    "receipt-used": "no message of the answer is held by it: each is done, was given back or delivered again",
}
"""The meanings of a whole answer: the group does not remember which it was."""
OF_PLACES = {
    "receipt-expired": "the partition is not this consumer's, or not any more: its owner counts",
    "receipt-used": "the consumer holds no message up to there",
}
"""The meanings of `up_to`."""


@dataclass(slots=True)
class Outcomes:
    """How many receipts were carried out, and the others with why not."""

    done: int = 0
    failed: list[Json] = field(default_factory=list)

    def add(self, other: Outcomes) -> None:
        """Take another partition's."""
        self.done += other.done
        self.failed += other.failed

    def fail(self, receipt: str, code: str, detail: str | None = None) -> None:
        """One was not carried out."""
        self.failed.append({"receipt": receipt, "code": code, "detail": detail or DETAILS.get(code, code)})

    def note(self, texts: Sequence[str], outcomes: Sequence[str | None]) -> None:
        """A leader's word on each, in their order."""
        refused = [(text, code) for text, code in zip(texts, outcomes, strict=True) if code is not None]
        self.done += len(outcomes) - len(refused)
        for text, code in refused:
            meanings = (
                OF_PLACES if ":" in text else OF_ANSWERS if len(text) == receipts.HEAD_TEXT else DETAILS
            )
            self.fail(text, code, meanings.get(code))

    def document(self) -> Json:
        """As answers have it."""
        return {"done": self.done, "failed": self.failed}


def outcomes_in(document: Any) -> Outcomes:
    """Another agent's. ShoalError leadership-lost for what none would say."""
    try:
        failed = [
            {name: str(item[name]) for name in ("receipt", "code", "detail")} for item in document["failed"]
        ]
        return Outcomes(int(document["done"]), failed)
    except (KeyError, TypeError, ValueError) as error:
        raise ShoalError("leadership-lost", f"the leader's answer is not understood: {error!r}") from None


@dataclass(slots=True)
class Parcel:
    """Words about messages of one partition. `texts` stand beside `acts`."""

    texts: list[str] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)


class Sorting:
    """The receipts of one request. `failed`: those that no leader need see."""

    def __init__(self, group: Group, partitions: int, only: int | None = None) -> None:
        """`only`: the request names this partition."""
        self._group = group
        self._partitions = range(partitions) if only is None else range(only, only + 1)
        self._heads: dict[str, Receipt | str] = {}
        self.parcels: dict[int, Parcel] = {}
        self.failed = Outcomes()

    async def sort(self, verb: ActKind, body: ActBody) -> None:
        """ShoalError bad-request if there are receipts and none of them is one; a partition that is not."""
        delay_ms, reason = body.delay_ms, body.reason
        for number, text in enumerate(body.receipts, 1):
            found = self._read(text)
            if isinstance(found, str):
                self.failed.fail(text, found)
            else:
                parcel = self.parcels.setdefault(found.partition, Parcel())
                parcel.texts.append(text)
                parcel.acts.append(Act(verb, found, delay_ms, reason))
            if number % SLICE_RECEIPTS == 0:
                await asyncio.sleep(0)
        failed = self.failed.failed
        if body.receipts and not self.parcels and all(item["code"] == "receipt-malformed" for item in failed):
            raise ShoalError("bad-request", f"{shown(failed[0]['receipt'])}: {DETAILS['receipt-malformed']}")
        for partition, offset in body.up_to.items():
            if partition not in self._partitions:
                raise ShoalError("unknown-partition", f"there is no partition {partition} here")
            parcel = self.parcels.setdefault(partition, Parcel())
            parcel.texts.append(f"{partition}:{offset}")  # no receipt has a colon
            up_to = Receipt.up_to(self._group.key, partition, offset)
            parcel.acts.append(Act(ActKind.UP_TO, up_to, consumer=name_hash(body.consumer)))

    def _read(self, text: str) -> Receipt | str:
        """The receipt, or why it is none of this group."""
        head_text = text[: receipts.HEAD_TEXT]
        head = self._heads.get(head_text)
        if head is None:
            head = self._heads[head_text] = self._read_head(head_text)
        if isinstance(head, str):
            return head
        try:
            offset, due_us = receipts.place_of(text)
        except ReceiptError as error:
            return error.code
        return head._replace(offset=offset, due_us=due_us)

    def _read_head(self, text: str) -> Receipt | str:
        try:
            head = receipts.parse(text)
            if head.group != self._group.key or head.partition not in self._partitions:
                return "receipt-of-another-group"
            return head if receipts.is_genuine(text, self._group.mac) else "receipt-forged"
        except ReceiptError as error:
            return error.code


def refused_parcel(parcel: Parcel, error: ShoalError) -> Outcomes:
    """A partition did not answer: nobody knows, or nothing happened."""
    outcomes = Outcomes()
    for text in parcel.texts:
        outcomes.fail(text, error.code, error.detail)
    return outcomes


def merged(parts: Iterable[Outcomes]) -> Outcomes:
    """Of all partitions."""
    total = Outcomes()
    for part in parts:
        total.add(part)
    return total
