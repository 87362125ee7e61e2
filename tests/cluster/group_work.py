"""The work on a topic's consumer groups, from their creation to the verdict, simulated or real.

Law of this file: it makes groups, starts whoever works on them, drains them in the end, and says what is
wrong. Consumers are group_clients.py's, operators group_operator.py's, rules group_checker.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from group_checker import GroupChecker
from group_clients import FAILING, SHARES, Ask, Brought, GroupConsumer, Recorder, Refused, Word, key_of
from group_gate import HttpGate
from group_history import Drained, GroupHistory, GroupTerms, Letter, Logged
from group_operator import Deed, GroupOperator, read_letters
from log_clients import NoAnswer, Workload, now_s
from log_history import Anomaly, FinalLog

CONSUMERS = 3
"""Of each group."""
LEASE_MS = (1_000, 3_000)
DRAIN_LEASE_MS = 10_000
DRAIN_MESSAGES = 100
RETRY_S = 0.1
SESSION_S = 1.5
OPERATOR_PAUSE_S = 0.7
_QUICK: dict[str, Any] = {
    "retry": {"first": "100ms", "most": "1s"},
    "session": "1500ms",
    "dead": "drop",
    "max_attempts": 4,
}
SETTINGS = {
    "shared": _QUICK | {"mode": "shared"},
    "exclusive": _QUICK | {"mode": "exclusive"},
    "key-ordered": _QUICK | {"mode": "key-ordered", "max_attempts": None},
}
"""Of the groups, which are called as their modes."""
LETTERS: dict[str, Any] = {"dead": "letter", "max_attempts": 2}
"""Instead, where what dies leaves a letter: it dies sooner."""


def settings_of(groups: Sequence[str], *, letters: bool) -> dict[str, dict[str, Any]]:
    """By the groups' names."""
    return {name: SETTINGS[name] | (LETTERS if letters else {}) for name in groups}


class NotInTime(Exception):
    """Groups could not be made, or brought to their end."""


class GroupWork:
    """`settings`: of each group, see `settings_of`. `limit_s`: for making a group, and in the end for as
    long as it brings nothing of what is left. `until_us`: of a partition whose messages fall due, which of
    them are asked for then."""

    def __init__(
        self,
        work: Workload,
        topic: str,
        settings: dict[str, dict[str, Any]],
        partitions: int,
        *,
        limit_s: float,
        until_us: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self.history = GroupHistory()
        self._work = work
        self._topic = topic
        self._partitions = partitions
        self._limit_s = limit_s
        self._until_us = until_us
        self._settings = settings
        self._gate = HttpGate(work, topic)

    async def create(self) -> None:
        """The groups. Raises NotInTime."""
        end_s = now_s() + self._limit_s
        for name, settings in self._settings.items():
            self.history.terms[name] = GroupTerms(
                settings["mode"], settings["max_attempts"], settings["dead"], SESSION_S
            )
            while not await self._is_made(name, settings):
                if now_s() > end_s:
                    raise NotInTime(f"group {name} cannot be made")
                await asyncio.sleep(RETRY_S)

    async def _is_made(self, name: str, settings: dict[str, Any]) -> bool:
        try:
            await self._gate.create(name, settings)
        except Refused:
            return False
        return True

    def clients(self, deeds: Sequence[Deed], pause_s: float) -> list[GroupConsumer | GroupOperator]:
        """Consumers of all groups, and an operator who does such things."""
        found: list[GroupConsumer | GroupOperator] = []
        if deeds:
            found.append(
                GroupOperator(
                    self._work,
                    self.history,
                    self._topic,
                    list(self._settings),
                    self._partitions,
                    deeds=deeds,
                    pause_s=OPERATOR_PAUSE_S,
                )
            )
        for name, settings in self._settings.items():
            found += [
                GroupConsumer(
                    self._work,
                    self._recorder(),
                    name,
                    f"{name}{number}",
                    self._partitions,
                    mode=settings["mode"],
                    lease_ms=LEASE_MS,
                    pause_s=pause_s,
                    shares=FAILING if settings["dead"] == "letter" else SHARES,
                )
                for number in range(CONSUMERS)
            ]
        return found

    def _recorder(self) -> Recorder:
        return Recorder(self.history, HttpGate(self._work, self._topic), self._topic)

    # ---- the end ---------------------------------------------------------------------------------

    async def drain(self) -> None:
        """One fresh consumer a group and partition takes what is left. Raises NotInTime."""
        places = [(name, number) for name in self._settings for number in range(self._partitions)]
        await asyncio.gather(*(self._drain(*place) for place in places))
        self._gate.close()

    async def _drain(self, group: str, partition: int) -> None:
        gate = HttpGate(self._work, self._topic)
        recorder = Recorder(self.history, gate, self._topic)
        end_s, number, said = now_s() + self._limit_s, 0, ""
        consumer = f"drain.{group}.{partition}"
        while now_s() < end_s:
            number += 1
            request = f"{consumer}.{number}"
            ask = Ask(group, partition, consumer, consumer, request, DRAIN_MESSAGES, DRAIN_LEASE_MS, 0)
            until_us = self._until_us(partition)
            try:
                brought = await recorder.receive(ask)
                await self._done(recorder, ask, brought)
                standing = await gate.standing(group, partition)
            except Refused as error:
                said = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            said = f"{brought.reason} {standing}"
            if not standing.lag and not brought.messages and not standing.dying:
                await self._read_letters(group, partition, standing.dead, end_s)
                self.history.drained.append(
                    Drained(
                        group,
                        (self._topic, partition),
                        standing.position,
                        skipped=standing.skipped,
                        dropped=standing.dropped,
                        generation=standing.generation,
                        until_us=until_us,
                    )
                )
                gate.close()
                return
            if brought.messages:  # each is done with by now, so this ends
                end_s = now_s() + self._limit_s
            else:
                await asyncio.sleep(RETRY_S)
        raise NotInTime(f"{group} {partition}: {said}")

    async def _read_letters(self, group: str, partition: int, count: int, end_s: float) -> None:
        """All that the group has given."""
        found = list[Letter]()
        while self.history.terms[group].dead == "letter":
            with contextlib.suppress(NoAnswer, Refused):
                found = await read_letters(self._work.some_agent(), self._topic, group, partition)
                if len(found) >= count:
                    break
            if now_s() > end_s:
                raise NotInTime(f"{group} {partition}: {len(found)} of {count} letters")
            await asyncio.sleep(RETRY_S)
        self.history.letters += found

    @staticmethod
    async def _done(recorder: Recorder, ask: Ask, brought: Brought) -> None:
        partition = brought.partition
        if partition is not None and brought.messages:
            words = [
                Word("ack", given.receipt, partition, brought.delivery, brought.generation, (given.offset,))
                for given in brought.messages
            ]
            while not await recorder.act(ask.group, partition, ask.consumer, words):
                await asyncio.sleep(RETRY_S)

    def read(self, finals: Sequence[FinalLog]) -> None:
        """`finals`: the partitions of the topic as they were read."""
        history = self.history
        for final in finals:
            log = {offset: Logged(value, key_of(value)) for offset, value in final.records}
            history.logs[final.partition] = log
        starts = {final.partition: final.log_start_offset for final in finals}
        history.drained = [replace(item, log_start_offset=starts[item.partition]) for item in history.drained]
        if any(change.kind == "redrive" for change in history.changes):
            values = (letter.value for letter in history.letters if letter.value is not None)
            self._work.history.may_be_copied.update(values)

    def anomalies(self) -> list[Anomaly]:
        """Once the logs are known."""
        return GroupChecker(self.history).anomalies()
