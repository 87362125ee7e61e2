"""Which due times a topic takes: a timer topic those of the next ten years, a log none.

Pure: the time is an argument. A time that has passed means at once.
"""

from __future__ import annotations

from shoal.agent.http.produce.decode import Chunk
from shoal.agent.interface import Topic
from shoal.errors import ShoalError
from shoal.format.timestamps import MAX_AHEAD_US, format_time


def check_due_times(topic: Topic | None, name: str, chunk: Chunk, now_us: int) -> None:
    """Before anything of the chunk is stored. `topic`: None where producing makes one, of kind log. Raises
    ShoalError bad-request."""
    columns = chunk.columns
    if columns is None:
        if topic is not None and topic.has_due_times:
            _check_latest(max((message.max_deliver_at_us for message in chunk.messages), default=0), now_us)
        return
    due_times = columns.deliver_at_us
    if due_times is None:
        return
    if topic is None or not topic.has_due_times:
        made = "" if topic is not None else ", and producing makes a log: create it first"
        raise ShoalError(
            "bad-request", f"deliver_at and delay need a topic of kind timer, which {name} is not{made}"
        )
    latest_us = max((time_us for time_us in due_times if time_us is not None), default=0)
    if latest_us - now_us > MAX_AHEAD_US:
        _check_latest(latest_us, now_us, due_times.index(latest_us))


def _check_latest(latest_us: int, now_us: int, record: int | None = None) -> None:
    if latest_us - now_us <= MAX_AHEAD_US:
        return
    due = f"is due at {format_time(latest_us)}, more than ten years ahead"
    if record is None:
        raise ShoalError("bad-request", f"a record {due}")
    raise ShoalError("bad-request", f"record {record} {due}", record=record)
