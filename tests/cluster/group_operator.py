"""An operator of consumer groups, and the letters that are left in the end.

Law of this file: seeks, redrives, pauses and retention over HTTP, at whichever agent; each is written down as
a Change, as exactly as its answer tells. What they excuse is group_index.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, cast

from group_clients import Refused
from group_gate import OK, HttpGate
from group_history import Change, GroupHistory, Letter
from log_clients import PAUSE_S, Connections, Steady, Workload, now_s
from log_history import Outcome

from shoal.format.timestamps import parse_time

ANYWHERE_MAX = 2**62
"""An offset beyond all others: where nobody knows how far a seek went."""
UNPAUSE_TRIES_MAX = 200
RECENT = 50
"""Receives that are looked at for the time of the agents' clocks."""
AGO_US = 10**7
PAUSED_S = (0.2, 1.5)
LETTERS_AT_ONCE = 1_000
Deed = Literal["seek", "redrive", "pause", "retention"]


class GroupOperator(Steady):
    """Does one thing after the other to groups of one topic. `deeds`: which, drawn with equal chances."""

    def __init__(
        self,
        work: Workload,
        history: GroupHistory,
        topic: str,
        groups: Sequence[str],
        partitions: int,
        *,
        deeds: Sequence[Deed],
        pause_s: float,
    ) -> None:
        super().__init__(work, pause_s)
        self._history = history
        self._topic = topic
        self._groups = groups
        self._partitions = partitions
        self._deeds = deeds
        self._gate = HttpGate(work, topic)

    async def run(self) -> None:
        """See Steady. In the end no group is paused."""
        try:
            await asyncio.sleep(self._work.rng.uniform(0, 2 * self._pause_s))
            await super().run()
        finally:
            self._gate.close()

    async def _act(self) -> None:
        rng = self._work.rng
        group, partition = rng.choice(self._groups), rng.randrange(self._partitions)
        match rng.choice(self._deeds):
            case "seek":
                await self._seek(group, partition)
            case "redrive":
                await self._redrive(group, partition)
            case "pause":
                await self._pause(group)
            case "retention":
                await self._change_retention()

    async def _seek(self, group: str, partition: int) -> None:
        """To the start, to the end, to an offset, or to the time of some seconds ago."""
        rng = self._work.rng
        try:
            standing = await self._gate.standing(group, partition)
        except Refused:
            return
        kind = rng.choice(("earliest", "latest", "offset", "time"))
        to: Any = kind
        least, most = 0, ANYWHERE_MAX
        if kind == "latest":
            least = standing.high_watermark
        elif kind == "offset":
            least = most = rng.randint(0, standing.high_watermark)
            to = {str(partition): least}
        elif kind == "time":
            told_us = [item.delivered_at_us for item in self._history.receives[-RECENT:]]
            if not any(told_us):
                return
            to = f"@{(max(told_us) - rng.randrange(AGO_US)) // 1_000}"
        invoked_at = now_s()
        generation, outcome = 0, cast("Outcome", "ok")
        try:
            offset, generation = await self._gate.seek(group, partition, to)
            least, most = (least if kind == "latest" else offset), offset
        except Refused as error:
            outcome = error.outcome
        self._note("seek", group, partition, invoked_at, outcome, most, least, generation)

    async def _redrive(self, group: str, partition: int) -> None:
        limit = self._work.rng.choice((None, 1, 5))
        invoked_at, outcome = now_s(), cast("Outcome", "ok")
        try:
            if not await self._gate.redrive(group, partition, limit):
                return  # nothing came again, for certain
        except Refused as error:
            # Letters that came before the error stay, however definite it is about the last ones.
            outcome = "info" if error.outcome == "fail" else error.outcome
        self._note("redrive", group, partition, invoked_at, outcome, 0, 0, 0)

    def _note(
        self,
        kind: Literal["seek", "redrive"],
        group: str,
        partition: int,
        invoked_at: float,
        outcome: Outcome,
        offset: int,
        least: int,
        generation: int,
    ) -> None:
        place = self._topic, partition
        made = Change(kind, group, place, invoked_at, now_s(), outcome, offset, least, generation)
        self._history.changes.append(made)

    async def _pause(self, group: str) -> None:
        """For a while; then the group goes on, whatever it takes."""
        try:
            await self._gate.change(group, {"paused": True})
        except Refused as error:
            if error.definite:
                return
        await asyncio.sleep(self._work.rng.uniform(*PAUSED_S))
        for _ in range(UNPAUSE_TRIES_MAX):
            try:
                await self._gate.change(group, {"paused": False})
            except Refused:
                await asyncio.sleep(PAUSE_S)
            else:
                return
        raise AssertionError(f"group {group} stays paused")

    async def _change_retention(self) -> None:
        """Records that all groups are done with may go, or stay again."""
        setting = {self._work.rng.choice(("acknowledged", "hold_for_groups")): self._work.rng.random() < 0.7}
        try:
            await self._gate.change_topic({"retention": setting})
        except Refused:
            return  # the next one may be taken


async def read_letters(agent: tuple[str, int], topic: str, group: str, partition: int) -> list[Letter]:
    """All letters of a group's partition. Raises NoAnswer, Refused."""
    connections, found, offset = Connections(), list[Letter](), 0
    path = f"/v1/topics/{topic}.dead.{group}/partitions/{partition}/records"
    try:
        while True:
            question = f"{path}?offset={offset}&limit={LETTERS_AT_ONCE}"
            answer = await connections.request(agent, "GET", question)
            if answer.status != OK:
                raise Refused(f"{answer.status} {answer.body}"[:500], definite=True)
            if not answer.body["records"]:
                return found
            found += (_letter_of(record, group, (topic, partition)) for record in answer.body["records"])
            offset = int(answer.body["next_offset"])
    finally:
        connections.close()


def _letter_of(record: dict[str, Any], group: str, place: tuple[str, int]) -> Letter:
    headers = {item["key"]: item["value"] for item in record["headers"]}
    told = headers["shoal-topic"], int(headers["shoal-partition"]), headers["shoal-group"]
    assert told == (*place, group), f"a letter of {told} stands among those of {group} {place}"
    return Letter(
        group,
        place,
        int(headers["shoal-offset"]),
        int(headers["shoal-attempts"]),
        headers["shoal-reason"],
        int(headers["shoal-letter"]),
        parse_time(headers["shoal-first-delivered"]),
        parse_time(headers["shoal-last-delivered"]),
        record["value"],
    )
