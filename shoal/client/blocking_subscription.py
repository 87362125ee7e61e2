"""The blocking client's subscription: messages of a group, over an event loop in the client's thread.

Law of this file: it decides nothing. An interrupt (Ctrl-C) between any two steps acks no message that its
user has not worked on. It gives back one that has not reached its user.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self, TypeVar

from shoal.client.loop_thread import LoopThread, on_thread
from shoal.client.subscribe.message import GroupMessage, MessageBatch
from shoal.client.subscribe.subscription import AsyncSubscription
from shoal.unpicklable import LiveObject

if TYPE_CHECKING:
    from shoal.client.blocking import Client

T = TypeVar("T", GroupMessage, MessageBatch)


class Subscription(LiveObject):
    """A consumer of a group; made by Client.subscribe. Iterating gives messages; use it from one thread at a
    time, and settle messages on any.

    Asking for the next message acks the one before. A message whose loop is left comes again: an error that
    leaves `with client.subscribe(...) as subscription:` is its reason. Python tells a loop nothing of
    `break`: a message that is done is acked before it.
    """

    def __init__(self, client: Client, thread: LoopThread, inner: AsyncSubscription) -> None:
        self._client = client  # it lives as long as anything that was made by it
        self._thread = thread
        self._inner = inner
        self.topic = inner.topic
        self.group = inner.group
        self.consumer = inner.consumer
        weakref.finalize(self, thread.start, inner.close)  # dropped in mid-reading: nothing more is held

    def __enter__(self) -> Self:
        self._inner.entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self._inner.settle_left(error)
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncSubscription", type(self).__name__, 1)

    @property
    def late(self) -> int:
        """Messages whose lease had ended before their word came: others have them, or had them."""
        return self._inner.late

    def __iter__(self) -> Iterator[GroupMessage]:
        return self._each(self._inner.take)

    def batches(self) -> Iterator[MessageBatch]:
        """Messages as Arrow, all of one answer at once, one word for all: asking for the next acks those
        before."""
        return self._each(self._inner.take_batch)

    def poll(self, timeout_seconds: float | None = None) -> GroupMessage | None:
        """The next message, to be settled by the caller: `with message:` does. None when none came within
        `timeout_seconds`, and when the subscription is closed.

        Raises ShoalError (unknown-topic, unknown-group, ...) and Unreachable; it may be asked again.
        """
        return self._next(self._inner.take, timeout_seconds)

    def _next(self, take: Callable[[], T | None], timeout_seconds: float | None) -> T | None:
        inner = self._inner
        before = inner.last
        try:
            while inner.has_ready() or self._thread.run(inner.wait_ready(timeout_seconds)):
                found = take()
                if found is not None:
                    return found
        except BaseException:
            inner.give_back(before)
            raise
        return None

    def _each(self, take: Callable[[], T | None]) -> Iterator[T]:
        before = self._inner.last
        while True:
            try:  # an interrupt between here and the user is none of the user's own
                found = self._next(take, None)
                if found is None:
                    return
                self._inner.hold(found)
            except BaseException:
                self._inner.give_back(before)
                raise
            try:
                yield found
                self._inner.done(found)
            except BaseException:  # its loop was left, or an interrupt came as the next was asked for
                self._inner.leave(found)
                raise
            before = self._inner.last

    flush = on_thread(AsyncSubscription.flush)
    close = on_thread(AsyncSubscription.close)
