"""The blocking client's consumer: positions, polling and frames, over an event loop in the client's thread.

Law of this file: it decides nothing; an interrupt (Ctrl-C) between any two steps leaves the positions where
the user's own loop has come.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from shoal.client.consume.consumer import AsyncConsumer
from shoal.client.consume.fetch import Fetched
from shoal.client.consume.record import Record
from shoal.client.loop_thread import LoopThread, on_thread
from shoal.format.tabular import FrameKind, check_kind
from shoal.unpicklable import LiveObject

if TYPE_CHECKING:
    from shoal.client.blocking import Client

T = TypeVar("T")


class Consumer(LiveObject):
    """Reads one topic; made by Client.consumer. Iterating gives records; use it from one thread at a time.

    Each partition's records come in order, each exactly once, also when leaders change; partitions are
    interleaved.
    """

    def __init__(self, client: Client, thread: LoopThread, inner: AsyncConsumer) -> None:
        self._client = client  # it lives as long as anything that was made by it
        self._thread = thread
        self._inner = inner
        self.topic = inner.topic
        self.positions = inner.positions
        self.position = inner.position
        weakref.finalize(self, thread.start, inner.close)  # dropped in mid-reading: nothing more is fetched

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncConsumer", type(self).__name__, 1)

    @property
    def at_end(self) -> bool:
        """Whether everything that a bounded reading wants was taken. Never while following."""
        return self._inner.at_end

    def __iter__(self) -> Iterator[Record]:
        inner = self._inner
        while True:
            before = inner.positions()
            try:
                found = self._next_rows(None)
                if found is None:
                    return
                records = inner.records(found)
                reached = inner.reading(found.partition)
            except BaseException:
                self._rewind(before)
                raise
            for record in records:
                reached.position = record.offset + 1  # the last step: after it the user has the record
                yield record

    def poll(self, timeout_seconds: float | None = None) -> Fetched | None:
        """The next rows of some partition; None at the end, or when none came within `timeout_seconds`.

        Raises ShoalError (trimmed, unknown-topic, ...) and Unreachable; the consumer stays where it was and
        may seek, or try again. So it does when it is interrupted.
        """
        before = self._inner.positions()
        try:
            return self._next_rows(timeout_seconds)
        except BaseException:
            self._rewind(before)
            raise

    def _next_rows(self, timeout_seconds: float | None) -> Fetched | None:
        found = self._inner.ready()
        return found if found is not None else self._thread.run(self._inner.poll(timeout_seconds))

    def _rewind(self, positions: dict[int, int]) -> None:
        """Records that were found as an interrupt came have not reached the user. The positions go back on
        the client's thread, once the interrupted work has ended there."""
        if self._inner.is_open:
            self._thread.call(lambda: self._inner.rewind(positions))

    def chunks(self) -> Iterator[Fetched]:
        """Rows as they are stored, with their partition and offsets."""
        return self._each(lambda: self._next_rows(None))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Arrow batches as they are stored: nothing is copied."""
        for found in self.chunks():
            yield found.batch

    def frames(self, kind: FrameKind = "pandas", rows: int = 100_000) -> Iterator[Any]:
        """Frames of about `rows` records (the last one fewer) with partition and offset in front; following,
        also sooner, when nothing else is there. Raises ClientError for another kind."""
        check_kind(kind)
        return self._each(lambda: self._thread.run(self._inner.next_frame(kind, rows)))

    def _each(self, take: Callable[[], T | None]) -> Iterator[T]:
        while True:
            before = self._inner.positions()
            try:  # an interrupt as `take` returns would be none of its own
                found = take()
            except BaseException:
                self._rewind(before)
                raise
            if found is None:
                return
            yield found

    seek = on_thread(AsyncConsumer.seek)
    seek_to_time = on_thread(AsyncConsumer.seek_to_time)
    lag = on_thread(AsyncConsumer.lag)
    pause = on_thread(AsyncConsumer.pause)
    close = on_thread(AsyncConsumer.close)

    def resume(self, *partitions: int) -> None:
        """Fetch these partitions again (none named: all)."""
        self._thread.call(lambda: self._inner.resume(*partitions))
