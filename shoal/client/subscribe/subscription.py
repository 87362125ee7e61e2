"""The subscription: a consumer of a group, whose messages are received, held and settled over HTTP.

Law of this file: the shell of ledger.py, which decides what is sent and held. A message reaches its user at
most once from here, and only while its lease runs. Two tasks work: one receives, one sends words and
extensions. Words may be said on any thread; everything else happens in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final, Self, Unpack

from shoal.client.http.requests import Cluster, Unreachable, now_ms
from shoal.client.subscribe.exchange import Arrival, ReceiveTerms
from shoal.client.subscribe.group_requests import GroupRequests
from shoal.client.subscribe.ledger import (
    ACK,
    FLUSH_ACKS,
    FLUSH_MS,
    HeldAnswer,
    Ledger,
    MessageOrder,
    Word,
)
from shoal.client.subscribe.message import GroupMessage, MessageBatch, messages_of
from shoal.client.subscribe.options import SubscribeOptions, default_consumer
from shoal.client.subscribe.pollers import Pollers
from shoal.client.subscribe.sender import WordSender
from shoal.errors import ClientClosed, ClientError, ShoalError
from shoal.format.batch import KEY_COLUMN
from shoal.format.timestamps import parse_duration_ms
from shoal.unpicklable import LiveObject

logger = logging.getLogger("shoal.client")

BATCH_MESSAGES: Final = 100
RECEIVE_BYTES: Final = 1 << 20
RECEIVE_WAIT_MS: Final = 5_000
"""How long an agent may hold a receive while there is nothing."""
EMPTY_PAUSE_MS: Final = 200
"""Between receives that are refused at once: the group is paused, or another consumer owns the partition."""
AHEAD_MS: Final = 100
"""The next messages are asked for while the last one is worked on, if the one before took less than this.
Otherwise another consumer may begin them sooner."""
CLOSE_SECONDS: Final = 5.0
"""For the last acks and releases. What has not left by then comes again when its lease ends."""
CLOSE_GRACE_SECONDS: Final = 0.1
"""For the answer to a receive that is on its way."""
FAILED_PAUSE_SECONDS: Final = 0.5
"""After words that no agent took, before they are said again."""
LEFT: Final = "its loop was left"


class AsyncSubscription(LiveObject):
    """A consumer of a group: `async for message in client.subscribe(topic, group="g")`, its `batches()`, or
    `poll()`; not from several tasks at once. It opens when first read; `async with` opens and closes it.

    Asking for the next message acks the one before. A message whose loop is left is nacked, with the error
    that leaves `async with` as its reason: ack before `break`. While a message is worked on its lease is
    extended.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        opened: set[AsyncSubscription],
        **options: Unpack[SubscribeOptions],
    ) -> None:
        """`opened`: of the client, which closes them in the end."""
        self.is_open = False
        self._opened = opened
        self._options = options
        self._closed = False
        self._gone = asyncio.Event()
        consumer = options.get("consumer")
        self._group = GroupRequests(
            cluster,
            topic,
            group,
            default_consumer() if consumer is None else consumer,
            options.get("partition"),
        )
        self._asking: ReceiveTerms | None = None
        self._ledger = Ledger()
        self._sender = WordSender(self._group, self._ledger)
        self._words: deque[tuple[HeldAnswer, Sequence[int], Word]] = deque()
        """Said, and not yet in the ledger: bounded by the messages that are held."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pollers = Pollers()
        self._wanted = asyncio.Event()
        self._poked = asyncio.Event()
        self._listens = False
        """The sender looks for words soon: acks need not wake it."""
        self._turning = False
        """A message is being given back in a group that keeps an order: those behind it may not be taken."""
        self._hurries = 0
        self._ahead = False
        self._taken_ms = 0
        self._request = ""
        """Of the receive that is on its way."""
        self.last: tuple[HeldAnswer, Sequence[int]] | None = None
        """The rows that were taken last."""
        self._in_hand: GroupMessage | MessageBatch | None = None
        """Of a loop."""
        self.entered = False
        """Within `async with`, whose end tells how a loop was left."""

    # --- opening and closing

    async def __aenter__(self) -> Self:
        self.entered = True
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        self.settle_left(error)
        await self.close()

    def settle_left(self, error: BaseException | None) -> None:
        """The loop over messages was left in the midst of one. That one fails: by the error that a block saw,
        or for an unknown reason. `break` looks like an error that was caught: ack before it."""
        message, self._in_hand = self._in_hand, None
        if message is None or message.settled is not None or self._closed:
            return
        if error is None:
            message.nack(reason=LEFT)
        else:
            message.fail(error)

    async def open(self) -> Self:
        """Learn what the group is like. Idempotent.

        Raises ShoalError, Unreachable, and ClientClosed for one that was closed."""
        if self._closed:
            raise ClientClosed(f"the subscription to {self.topic} is closed: make another")
        if self.is_open:
            return self
        document = await self._group.open(self._options.get("mode"))
        seconds = self._options.get("visibility_seconds")
        own_ms = parse_duration_ms(str(document["visibility"]))
        self._asking = self._group.asking(
            self._options.get("batch", BATCH_MESSAGES),
            self._options.get("max_bytes", RECEIVE_BYTES),
            own_ms if seconds is None else round(seconds * 1_000),
        )
        self._ledger.order = MessageOrder(document["mode"])
        self.is_open = True
        self._opened.add(self)
        self._loop = asyncio.get_running_loop()
        self._tasks = {
            "receive": asyncio.create_task(self._receive_on()),
            "send": asyncio.create_task(self._send_on()),
        }
        if self._ledger.order is MessageOrder.EXCLUSIVE:
            session_ms = parse_duration_ms(str(document["session"]))
            self._tasks["presence"] = asyncio.create_task(self._tell_presence(session_ms))
        return self

    async def close(self) -> None:
        """Release what was not begun, send the last acks, and go. Idempotent. Messages in hand come again
        when their leases end."""
        if self._closed:
            await self._gone.wait()
            return
        self._closed = True
        try:
            if self.is_open:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._say_goodbye()
        except (TimeoutError, ShoalError, Unreachable) as error:
            logger.warning("%s: the last words were not heard: %s", self, str(error) or "no answer")
        finally:
            self.is_open = False
            self._opened.discard(self)
            self._gone.set()
            await self._stop(*self._tasks)
            await self._pollers.wake()

    async def _say_goodbye(self) -> None:
        await self._stop("presence")
        receiving = self._tasks["receive"]
        self._wanted.set()
        await asyncio.wait((receiving,), timeout=CLOSE_GRACE_SECONDS)
        request = self._request
        await self._stop("receive")
        async with self._sender.sending:
            await self._stop("send")
        if request and self._asking is not None:  # cut off: what it brought would wait for its lease's end
            began_ms = now_ms()
            arrival = await self._group.receive_again(self._asking, request)
            self._take_in(arrival, self._asking, began_ms, self._ledger.turns)
        self._hear()
        self._ledger.release_unbegun()
        await self._sender.send_words(everything=True)
        if self._ledger.order is MessageOrder.EXCLUSIVE:
            await self._group.present(leaves=True)

    async def _stop(self, *names: str) -> None:
        tasks = [self._tasks.pop(name) for name in names if name in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._ledger.ready} ready, {self._ledger.taken} in hand"
        return f"<{type(self).__name__} of {self.topic!r}, group {self.group!r}, {state}>"

    @property
    def topic(self) -> str:
        """The topic of the messages."""
        return self._group.topic

    @property
    def group(self) -> str:
        """The group's name."""
        return self._group.group

    @property
    def consumer(self) -> str:
        """The consumer's name."""
        return self._group.consumer

    @property
    def late(self) -> int:
        """Messages whose lease had ended before their word came: others have them, or had them."""
        return self._sender.late

    # --- taking

    async def poll(self, timeout_seconds: float | None = None) -> GroupMessage | None:
        """The next message, to be settled by the caller: `with message:` does. None when none came within
        `timeout_seconds`, and when the subscription is closed.

        Raises ShoalError (unknown-topic, unknown-group, ...) and Unreachable; it may be asked again.
        """
        while await self.wait_ready(timeout_seconds):
            message = self.take()
            if message is not None:
                return message
        return None

    async def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """Wait until there is a message to be taken; False when none came, or this is closed. Raises as
        `poll`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                if not self._closed:
                    await self.open()
                await self._pollers.poll(
                    timeout_seconds, lambda: self._closed or self.has_ready(), self._wanted.set
                )
        except TimeoutError:
            return False
        return not self._closed

    def has_ready(self) -> bool:
        """Whether `take` would give a message."""
        line, time_ms = self._ledger.line, now_ms()
        return not self._turning and any(answer.ready and time_ms < answer.until_ms for answer in list(line))

    def take(self) -> GroupMessage | None:
        """The next message that is here, for another thread; None when there is none."""
        time_ms = now_ms()
        found = None if self._turning else self._ledger.first(time_ms)
        if found is None:
            return None
        answer, row = found
        self.last = (answer, (row,))  # first: an interrupt from here on is undone by `give_back`
        if not self._ledger.take(answer, row):
            return None
        if not isinstance(answer.content, list):
            answer.content = list(messages_of(self.topic, self.tell, answer, answer.content))
        if not answer.ready and time_ms - self._taken_ms <= AHEAD_MS and len(self._ledger.line) == 1:
            self._ahead = self._ledger.order is MessageOrder.SHARED
            self._poke()
        self._taken_ms = time_ms
        message: GroupMessage = answer.content[row]
        return message

    def give_back(self, before: object) -> None:
        """Messages that were taken since `last` was `before` have reached nobody."""
        taken = self.last
        if taken is None or taken is before:
            return
        self._ledger.give_back(*taken)
        if self._in_hand is not None and self._in_hand.place == taken:
            self._in_hand = None
        self.last = None

    async def __aiter__(self) -> AsyncIterator[GroupMessage]:
        while (message := await self.poll()) is not None:
            self.hold(message)
            try:
                yield message
            except GeneratorExit:
                self.leave(message)
                raise
            self.done(message)

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Messages as Arrow, all of one answer at once, one word for all: asking for the next acks those
        before."""
        while await self.wait_ready():
            batch = self.take_batch()
            if batch is None:
                continue
            self.hold(batch)
            try:
                yield batch
            except GeneratorExit:
                self.leave(batch)
                raise
            self.done(batch)

    def hold(self, message: GroupMessage | MessageBatch) -> None:
        """A loop gives it to its user. One of an earlier loop that was left fails."""
        self.settle_left(None)
        self._in_hand = message

    def done(self, message: GroupMessage | MessageBatch) -> None:
        """The user of a loop asks for the next one."""
        self._in_hand = None
        if message.settled is None and not self._closed:
            message.ack()

    def leave(self, message: GroupMessage | MessageBatch) -> None:
        """The loop is left. The end of a block around it may know why."""
        if message is self._in_hand and not self.entered:
            self.settle_left(None)

    def take_batch(self) -> MessageBatch | None:
        """The unbegun messages of one answer that is here; None when there is none."""
        found = None if self._turning else self._ledger.first(now_ms())
        if found is None:
            return None
        answer, rows = found[0], list(found[0].ready)
        self.last = (answer, rows)
        rows = [row for row in rows if self._ledger.take(answer, row)]
        content = answer.content
        if isinstance(content, list):
            raise ClientError("batches() is not for a subscription whose messages were taken one by one")
        whole = rows == list(range(answer.rows))
        return MessageBatch(self.tell, answer, rows, content if whole else content.take(rows), self.topic)

    # --- words

    def tell(self, answer: HeldAnswer, rows: Sequence[int], word: Word) -> None:
        """A word about messages, on any thread. Raises ClientClosed."""
        if self._closed:
            raise ClientClosed(f"the subscription to {self.topic} is closed: its messages come again")
        self._words.append((answer, rows, word))
        if word.kind in ("nack", "release") and self._ledger.order is not MessageOrder.SHARED:
            self._turning = True  # behind the word, which is heard before this is taken back
        if word != ACK or len(self._words) >= FLUSH_ACKS or not self._listens:
            self._poke()

    def _poke(self) -> None:
        """Have the event loop look at what was said or taken."""

        def look() -> None:
            self._poked.set()
            if self._ahead:
                self._wanted.set()

        self._listens = True
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: so is this subscription
            self._loop.call_soon_threadsafe(look)

    def _hear(self) -> None:
        """Bring what was said into the ledger."""
        self._listens = self._turning = False  # first: whoever speaks from now on wakes the sender
        time_ms = now_ms()
        while self._words:
            self._ledger.say(*self._words.popleft(), time_ms)

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until every word so far was answered: acks are durable then. Raises ShoalError, Unreachable,
        and TimeoutError after `timeout_seconds`."""

        def is_quiet() -> bool:
            self._hear()
            return self._closed or not self._ledger.unconfirmed

        self._hurries += 1
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._pollers.wait(is_quiet, self._poked.set)
        finally:
            self._hurries -= 1

    # --- the two tasks

    async def _receive_on(self) -> None:
        while not self._closed:
            self._wanted.clear()
            if self.has_ready() or not (self._pollers or self._ahead):
                await self._wanted.wait()
                continue
            self._ahead = False
            assert self._asking is not None
            try:
                if self._ledger.order is not MessageOrder.SHARED:
                    self._hear()
                    await self._sender.send_words()  # a message that was given back comes first
                pause_seconds = await self._receive(self._asking)
            except Exception as error:  # noqa: BLE001 - whoever polls raises any error
                await self._pollers.fail(error)
                pause_seconds = FAILED_PAUSE_SECONDS
            await asyncio.sleep(pause_seconds)

    async def _receive(self, asking: ReceiveTerms) -> float:
        """One receive, with the acks that go along; how many seconds to pause afterwards. Raises ShoalError
        and Unreachable."""
        self._hear()
        began_ms, turns = now_ms(), self._ledger.turns
        wait_ms = min(self._pollers.longest_ms(), RECEIVE_WAIT_MS)
        acks = self._ledger.riding(began_ms)
        self._request = secrets.token_hex(16)
        try:
            receipts = acks.receipts if acks else ()
            arrival = await self._group.receive(asking, self._request, wait_ms, receipts)
        except BaseException as error:
            if acks is not None:
                self._ledger.repeat(acks, again=not getattr(error, "definite", False))
            if not isinstance(error, asyncio.CancelledError):
                self._request = ""
            raise
        self._request = ""
        took_ms = now_ms() - began_ms
        if acks is not None and arrival.refused:
            self._ledger.repeat(acks, again=True)  # by themselves: their answer says which, and why
        elif acks is not None:
            self._ledger.confirm(acks)
        # Messages of a repetition may have been held since the first attempt.
        self._take_in(arrival, asking, began_ms if arrival.again else now_ms(), turns)
        await self._pollers.wake()
        refused = arrival.rows is None and took_ms < min(wait_ms, EMPTY_PAUSE_MS)
        return EMPTY_PAUSE_MS / 1_000 if refused else 0

    def _take_in(self, arrival: Arrival, asking: ReceiveTerms, began_ms: int, turns: int) -> None:
        if arrival.rows is None:
            return
        keys = (
            arrival.rows.column(KEY_COLUMN).to_pylist()
            if self._ledger.order is MessageOrder.KEY_ORDERED
            else ()
        )
        answer = HeldAnswer(arrival.receipt, arrival.partition, arrival.pieces, keys)
        answer.content = arrival.rows
        self._ledger.received(answer, asking.visibility_ms, began_ms, now_ms())
        if turns != self._ledger.turns:  # given back meanwhile: what comes behind it must wait for it
            self._ledger.release_unbegun()
        self._poked.set()  # its lease has a deadline

    async def _send_on(self) -> None:
        while True:
            self._poked.clear()
            self._hear()
            try:
                unheard = await self._sender.send_words(everything=self._hurries > 0)
                await self._sender.extend()
                await asyncio.sleep(FAILED_PAUSE_SECONDS if unheard else 0)
            except Exception as error:  # noqa: BLE001 - whoever polls raises any error
                await self._pollers.fail(error)
                await asyncio.sleep(FAILED_PAUSE_SECONDS)
            await self._pollers.wake()
            deadline_ms = self._ledger.deadline_ms()
            seconds = None if deadline_ms is None else max(deadline_ms - now_ms(), 0) / 1_000
            if seconds is not None and 1_000 * seconds <= FLUSH_MS:
                self._listens = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._poked.wait()

    async def _tell_presence(self, session_ms: int) -> None:
        while True:
            try:
                await self._group.present()
            except Unreachable:
                pass  # a receive meets that too, and reports it
            except ShoalError as error:
                await self._pollers.fail(error)
            await asyncio.sleep(session_ms / 3_000)
