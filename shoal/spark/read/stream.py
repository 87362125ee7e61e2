"""A stream's position in its topics: its beginning, the end of the next micro-batch, and the ranges to read.

No Spark here: source.py hands these calls on. One object lives as long as the query, in one process of the
driver. Spark's checkpoint holds the offsets that a replay needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal.spark.options.errors import data_loss
from shoal.spark.options.read_options import SourceOptions
from shoal.spark.read.http import pool_of
from shoal.spark.read.plan import (
    LogEnds,
    OffsetRange,
    Offsets,
    TopicPartition,
    by_topic,
    limit_ends,
    offsets_from_json,
    offsets_to_json,
    split,
    stream_ends,
    stream_ranges,
)
from shoal.spark.read.topics import Directory

DISCOVERY_SECONDS: Final = 10.0  # between two looks for new topics and partitions
EMPTY_PAUSE_SECONDS: Final = 1.0  # between two looks while no topic exists
HELD_PAUSE_SECONDS: Final = 0.1
"""Between two looks while a micro-batch is not large enough yet: agents answer each time a record comes."""

OffsetsJson = dict[str, dict[str, int]]
States = dict[str, dict[int, LogEnds]]


class StreamPlanner:
    """Answers Spark's questions about one stream."""

    def __init__(
        self,
        options: SourceOptions,
        directory: Directory | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._pause = pause
        self._directory = directory or Directory(options.agents, pool=pool_of(options.credentials))
        self._clock = clock
        self._initial: OffsetsJson | None = None
        self._initial_ends: Offsets = {}
        self._place: OffsetsJson | None = None  # where the next micro-batch begins, as far as Spark has shown
        self._has_answered = False
        self._states: States = {}
        self._states_since = float("-inf")
        self._targets: Offsets | None = None  # ends fixed by Trigger.AvailableNow
        self._held_since: float | None = None  # records wait for more, to be minOffsetsPerTrigger together

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that tasks may ask."""
        return self._directory.agents

    def initial_offset(self) -> OffsetsJson:
        """The beginning of a new query. Spark asks more than once and gets the same answer."""
        if self._initial is None:
            selection = self._options.selection
            states = self._directory.states(selection)
            self._take_in(states)
            starts = self._directory.resolve(self._options.starting, "starting", states)
            self._check_starts(starts, states)
            self._initial = offsets_to_json(starts)
            self._initial_ends = _high_watermarks(states)
        return self._initial

    def _check_starts(self, starts: Mapping[TopicPartition, int], states: States) -> None:
        for (topic, partition), start in starts.items():
            state = states[topic][partition]
            if (
                not state.log_start_offset <= start <= state.high_watermark
                and self._options.fail_on_data_loss
            ):
                raise data_loss(
                    f"option startingOffsets: partition {partition} of topic {topic!r} has offsets"
                    f" {state.log_start_offset} to {state.high_watermark}, not {start}"
                )

    def prepare_available_now(self) -> None:
        """Fix the ends: the query reads up to the present high watermarks, then stops."""
        self._targets = _high_watermarks(self._existing_states())

    def latest_offset(self, start_json: Any | None, max_rows: int | None) -> OffsetsJson:
        """The end of the next micro-batch; the start itself when there is nothing to read.

        `start_json` is None where Spark does not tell it (4.0, 4.1). The micro-batch then begins at the end
        of the last one that was planned. After a restart Spark first plans an empty one at the newest offset
        of its checkpoint. Such a Spark does not tell of Trigger.AvailableNow either, which asks once: so the
        first answer does not wait.
        """
        is_told = start_json is not None
        if start_json is None:
            start_json = self.initial_offset() if self._place is None else self._place
        is_first = not self._has_answered
        targets = self._targets
        if targets is None and is_first and start_json == self._initial:
            # A new query's first micro-batch ends where its beginning was looked up. A partition that begins
            # at its log's end so has its beginning in the checkpoint before anything of it is read.
            targets = self._initial_ends
        may_wait = targets is None and (is_told or not is_first)
        end = self._next_end(offsets_from_json(start_json), targets, may_wait, max_rows)
        self._has_answered, self._place = True, end
        return end

    def _next_end(
        self, start: Offsets, targets: Offsets | None, may_wait: bool, max_rows: int | None
    ) -> OffsetsJson:
        """While there is nothing it waits at an agent, at most idle_wait_ms: Spark asks again at once."""
        deadline = self._clock() + self._options.idle_wait_ms / 1000
        # The last states do where they show something to read, or where waiting comes next anyway.
        known = all(partition in self._states.get(topic, {}) for topic, partition in start)
        is_stale = self._clock() - self._states_since > DISCOVERY_SECONDS
        never_waits = self._targets is not None or self._options.idle_wait_ms == 0
        must_ask = never_waits or not known or is_stale
        states = self._existing_states() if must_ask else self._states
        while True:
            self._fix_missing_ends(start, states)
            begins, ends = stream_ends(start, states, self._options.fail_on_data_loss, targets)
            has_new = bool(begins.keys() - start.keys())
            if has_new or (ends != begins and (not may_wait or self._is_enough(begins, ends))):
                break
            remaining = deadline - self._clock()
            if not may_wait or remaining <= 0:
                return offsets_to_json(start)
            states = self._after_waiting(ends, remaining)
        self._held_since = None
        if max_rows is not None:
            ends = limit_ends(begins, ends, max_rows)
        return offsets_to_json(ends)

    def _fix_missing_ends(self, start: Offsets, states: States) -> None:
        """The present end counts where agents denied a topic when the query's end was fixed, and know it now.
        Nothing that the checkpoint names is passed over in silence."""
        if self._targets is not None:
            known = _high_watermarks(states)
            missing = start.keys() & known.keys() - self._targets.keys()
            self._targets.update({place: known[place] for place in missing})

    def _is_enough(self, begins: Offsets, ends: Offsets) -> bool:
        """Whether a micro-batch has minOffsetsPerTrigger records, or some have waited for maxTriggerDelay.
        Logs that were made again are taken at once: their places have to get into the checkpoint.

        Nor does the first micro-batch after a start wait, as in Spark's Kafka source: its records may have
        waited already.
        """
        is_made_again = any(ends[place] < begin for place, begin in begins.items())
        records = sum(ends.values()) - sum(begins.values())
        if not self._has_answered or is_made_again or records >= self._options.min_offsets_per_trigger:
            return True
        if self._held_since is None:
            self._held_since = self._clock()
        return self._clock() >= self._held_since + self._options.max_trigger_delay_ms / 1000

    def _after_waiting(self, ends: Mapping[TopicPartition, int], seconds: float) -> States:
        """The states after an answer or a pause."""
        if not ends:  # no topic matches the pattern yet
            self._pause(min(seconds, EMPTY_PAUSE_SECONDS))
            return self._existing_states()
        if self._held_since is not None:
            self._pause(min(seconds, HELD_PAUSE_SECONDS))
            left = self._held_since + self._options.max_trigger_delay_ms / 1000 - self._clock()
            seconds = max(0.0, min(seconds - HELD_PAUSE_SECONDS, left))
        heard = self._directory.wait(self._options.selection, by_topic(ends), seconds)
        if not heard:
            return self._existing_states()
        self._states = {**self._states, **heard}
        return self._states

    def _existing_states(self) -> States:
        states = self._directory.existing_states(self._options.selection)
        self._take_in(states)
        return states

    def _take_in(self, states: States) -> None:
        self._states, self._states_since = states, self._clock()

    def reported_offset(self) -> OffsetsJson | None:
        """The newest known ends: with the offsets of the query's progress they give its lag."""
        return offsets_to_json(_high_watermarks(self._states)) or None

    def ranges(self, start_json: Any, end_json: Any) -> list[OffsetRange]:
        """The tasks of a micro-batch. After a restart it is the first call, with the checkpoint's offsets."""
        start, end = offsets_from_json(start_json), offsets_from_json(end_json)
        if not self._has_answered and start_json == self._initial:
            # The first micro-batch of another process, planned again. Its beginning was looked up anew, and
            # what begins at its log's end may do so behind that micro-batch, which had nothing of it.
            end = {place: max(last, start.get(place, 0)) for place, last in end.items()}
        self._place = end_json
        covered = all(
            partition in self._states.get(topic, {}) and last <= self._states[topic][partition].high_watermark
            for (topic, partition), last in end.items()
        )
        states = self._states if covered else self._existing_states()
        return split(stream_ranges(start, end, states, self._options.fail_on_data_loss), self._options)


def _high_watermarks(states: States) -> Offsets:
    return {
        (topic, partition): state.high_watermark
        for topic, partitions in states.items()
        for partition, state in partitions.items()
    }
