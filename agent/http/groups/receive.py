"""POST .../receive: acks, and then messages of a group, at a partition or anywhere in a topic.

A request about one partition goes to its leader as it is: acks and messages are one commit there. About a
topic with several, topic_receive.py says which partition is asked when.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TypeVar

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import group_operations as api
from shoal.agent.http.api.media import ARROW_TYPE, JSON_TYPE
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import forward_target
from shoal.agent.http.core.leader import at_leader, partition_of
from shoal.agent.http.core.waits import WaitingClient
from shoal.agent.http.fetch.render import choose_media
from shoal.agent.http.groups.acts import tell
from shoal.agent.http.groups.answer import Answered, Send, nothing, render, send
from shoal.agent.http.groups.bodies import ActBody, ReceiveBody, name_hash, receive_body
from shoal.agent.http.groups.outcomes import Outcomes, Parcel, Sorting, outcomes_in
from shoal.agent.http.groups.target import Target, find, is_second_hop
from shoal.agent.http.groups.topic_receive import TopicReceive
from shoal.agent.interface import ActKind, Granted, GroupMode, Leader, Wanted
from shoal.agent.security.quota import WAITS
from shoal.errors import ShoalError

FORMS = (JSON_TYPE, ARROW_TYPE)
T = TypeVar("T")


async def receive(by_partition: bool, call: Call) -> web.StreamResponse:
    """200 with messages, or why there are none. A client that has gone is given nothing."""
    is_arrow = choose_media(call.headers.get("Accept"), FORMS) == ARROW_TYPE
    document = await optional_object(call, call.context.limits.body_bytes)
    body = receive_body(document, is_arrow=is_arrow)
    with may_wait(call, body):
        target = await find(call, by_partition=by_partition, makes=Deadline(call.timeout_ms()))
        request = ReceiveRequest(call, target, body, is_arrow=is_arrow)
        return await while_the_client_waits(call, call.request, request.answer())


def may_wait(call: Call, body: ReceiveBody) -> AbstractContextManager[None]:
    """One of the asker's waits, if it is one."""
    return call.asker.hold(WAITS) if body.wait_ms else nullcontext()


async def while_the_client_waits(call: Call, client: WaitingClient, answer: Awaitable[T]) -> T:
    """The answer. ShoalError where the agent stops meanwhile, or the client may no longer receive;
    ConnectionResetError where the client goes."""
    waits, asker = call.context.waits, call.asker
    try:
        return await waits.run(client, asker, answer)
    except ShoalError as error:
        if error is asker.refused:
            detail = f"{error.detail}; messages may have been given"
            raise ShoalError(error.code, detail, definite=False, **error.extra) from None
        if error.code != "stopping" or not waits.stopped:
            raise
        detail = f"{error.detail}; messages may have been given: repeat the request"
        raise ShoalError("leadership-lost", detail) from None


ROUTES = (
    Route(api.RECEIVE, partial(receive, False)),
    Route(api.RECEIVE_FROM_PARTITION, partial(receive, True)),
)


class ReceiveRequest:
    """One receive. It is the `Asked` of a topic's receive."""

    def __init__(self, call: Call, target: Target, body: ReceiveBody, *, is_arrow: bool) -> None:
        if target.group.mode is GroupMode.EXCLUSIVE and not body.consumer:
            raise ShoalError(
                "wrong-mode", f"group {target.group.name} is exclusive: name the consumer in `consumer`"
            )
        self.call = call
        self.target = target
        self.body = body._replace(max_bytes=call.affordable(body.max_bytes))
        self.is_arrow = is_arrow
        try:
            self.acked = Outcomes() if body.acked is None else outcomes_in(body.acked)
        except ShoalError:
            raise ShoalError("bad-request", "`acked` is for agents alone: leave it out") from None
        self.consumer, self.instance, self.request = map(
            name_hash, (body.consumer, body.instance, body.request)
        )
        wait_ms = min(body.wait_ms, call.context.limits.wait_ms)
        self.waiting = Deadline(wait_ms)
        self._deadline = Deadline(wait_ms + call.timeout_ms())
        self._parcels: dict[int, Parcel] = {}
        self._told = False
        """Acks of this request may be done: then no fault of it says that nothing has happened."""

    async def answer(self) -> web.StreamResponse:
        """Acks to where they belong, then messages."""
        with self._definite_unless_told():
            await self._sort_acks()
            partitions = self.target.partitions
            if len(partitions) > 1:
                return await TopicReceive(self).answer()
            return await self._answer_of(partitions[0])

    async def send_here(self, send: Send[None]) -> None:
        """The same of a request about one partition: acks and messages at this agent, or not at all. The
        answer goes through `send`."""
        (partition,) = self.target.partitions
        with self._definite_unless_told():
            await self._sort_acks()
            granted = await self.receive_here(partition, self.waiting.remaining_ms())
            await self._sent(partition, granted, send)

    @contextmanager
    def _definite_unless_told(self) -> Iterator[None]:
        try:
            yield
        except ShoalError as error:
            raise ShoalError(
                error.code, error.detail, definite=error.definite and not self._told, **error.extra
            ) from None

    async def _sort_acks(self) -> None:
        target, only = self.target, self.target.partition
        sorting = Sorting(target.group, len(target.topic.ranges), only)
        await sorting.sort(ActKind.ACK, self._acks())
        self.acked.add(sorting.failed)
        self._parcels = sorting.parcels

    def _acks(self) -> ActBody:
        return ActBody(self.body.acks, None, "", {}, "")

    async def _answer_of(self, partition: int) -> web.StreamResponse:
        call, topic = self.call, self.target.topic

        async def here() -> web.StreamResponse:
            granted = await self.receive_here(partition, self.waiting.remaining_ms())
            return await self.rendered(partition, granted)

        async def there(leader: Leader) -> web.StreamResponse:
            return await self.relayed(leader, partition, 0, self.waiting.remaining_ms())

        return await at_leader(call, partition_of(call, topic, partition), here, there, self._deadline)

    async def send_acks_but_of(self, partition: int | None) -> None:
        """To the leaders of all other partitions."""
        others = {key: parcel for key, parcel in self._parcels.items() if key != partition}
        if others:
            deadline = Deadline(self.call.timeout_ms())
            self.acked.add(await tell(self.call, self.target, "ack", self._acks(), others, deadline))
            self._told = True
            self._parcels = {key: parcel for key, parcel in self._parcels.items() if key not in others}

    async def receive_here(self, partition: int, wait_ms: int, promise: int = 0) -> Granted:
        """From this agent's leader, with the acks that belong there. ShoalError as `receive` of groups."""
        body, group = self.body, self.target.group
        parcel = self._parcels.get(partition) or Parcel()
        wanted = Wanted(
            self.consumer,
            self.instance,
            self.request,
            body.limit,
            body.max_bytes,
            group.visibility_ms if body.visibility_ms is None else body.visibility_ms,
            promise or body.promise,
            body.consumer,
        )
        granted = await self.call.context.broker.receive(
            self.target.topic, partition, group, wanted, parcel.acts, wait_ms, self.call.timeout_ms()
        )
        self.acked.note(parcel.texts, granted.outcomes)
        self._told = self._told or bool(parcel.texts)
        self._parcels.pop(partition, None)
        return granted

    async def rendered(self, partition: int, granted: Granted) -> web.StreamResponse:
        """The answer to a grant, or without messages."""
        return await self._sent(partition, granted, partial(send, self.call))

    async def _sent(self, partition: int, granted: Granted, send: Send[T]) -> T:
        if not granted.delivered:
            reason = granted.refusal or "empty"
            return await send(nothing(reason, self.acked, self.target, is_arrow=self.is_arrow))
        answered = Answered(
            self.target, partition, granted, self.acked, self.is_arrow, max(self.body.max_bytes, 1)
        )
        return await render(self.call, answered, send)

    async def nothing(self, reason: str) -> web.StreamResponse:
        """The answer without messages."""
        return await send(self.call, nothing(reason, self.acked, self.target, is_arrow=self.is_arrow))

    async def relayed(self, leader: Leader, partition: int, promise: int, wait_ms: int) -> web.StreamResponse:
        """The answer of another agent that leads a partition, as it comes."""
        call, body = self.call, self.body
        parcel = self._parcels.get(partition) or Parcel()
        sent: dict[str, object] = {
            "limit": body.limit,
            "max_bytes": body.max_bytes,
            "wait": f"{wait_ms}ms",
            **({} if body.visibility_ms is None else {"visibility": f"{body.visibility_ms}ms"}),
            **{name: value for name in ("consumer", "instance", "request") if (value := getattr(body, name))},
            **({"retry": True} if body.retry else {}),
            **({"promise": promise} if promise else {}),
            **({"ack": parcel.texts} if parcel.texts else {}),
            **({"acked": self.acked.document()} if self.acked.done or self.acked.failed else {}),
        }
        timeout_ms = call.timeout_ms()
        path = self.target.path("receive", partition=partition)
        accept = ARROW_TYPE if self.is_arrow else JSON_TYPE
        return await call.context.forwarder.relay(
            call.request,
            leader.url,
            forward_target(path, {}, timeout_ms),
            headers={"Accept": accept, "Content-Type": JSON_TYPE},
            passed_on=call.asker.passed_on,
            timeout_ms=timeout_ms + wait_ms,
            spend=call.spend,
            body=json.dumps(sent).encode("ascii"),
            added={"Shoal-Created": "true"} if self.target.created and not is_second_hop(call) else None,
        )
