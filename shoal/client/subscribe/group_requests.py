"""The requests of one consumer to its group: where they go, and what is asked again.

Law of this file: it asks and reads answers, and keeps no message. Shell of exchange.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from shoal.client.http.group_path import group_path
from shoal.client.http.requests import Answer, Call, Cluster, topic_path
from shoal.client.subscribe.exchange import (
    Arrival,
    ReceiveTerms,
    act_body,
    act_call,
    arrival_of,
    extend_call,
    presence_call,
    receive_body,
    receive_call,
    refusals,
)
from shoal.client.subscribe.ledger import ActRequest
from shoal.errors import ERRORS, ShoalError, is_error_code, unknown_partition

DEPOSED_GRACE_MS: Final = 1_000
"""A leader may be silent so long before other agents are asked who leads by now."""
UNKNOWN: Final = {"mode": "shared", "visibility": "30s", "session": "10s"}
"""A group that the first receive makes."""


class Heard(NamedTuple):
    """The answer to a word. `unheard`: receipts whose partition had no leader, or may have taken them.
    `late`: messages that are not held any more."""

    unheard: frozenset[str]
    late: int


class GroupRequests:
    """`consumer` and `instance` name the one that asks. All methods raise ShoalError and Unreachable."""

    def __init__(
        self, cluster: Cluster, topic: str, group: str, consumer: str, partition: int | None
    ) -> None:
        if consumer in ("", ".", ".."):  # a path cannot hold these
            raise ShoalError(
                "bad-request",
                f"{consumer!r} is no consumer's name: use 1 to 128 printable ASCII characters (not . or ..)",
            )
        self.topic = topic
        self.group = group
        self.consumer = consumer
        self._cluster = cluster
        self._instance = secrets.token_hex(8)
        self._partition = partition
        self._path = group_path(topic, group, partition)
        self._is_chosen = partition is not None
        self._is_new = False
        """Nobody has heard of it: a receive of the whole topic makes it."""

    async def open(self, mode: str | None) -> dict[str, Any]:
        """The group's settings; a mode that is wished for makes the group, or is refused."""
        await self._cluster.refresh(self.topic, retry=True)
        routes = self._cluster.routes.topic(self.topic)
        if self._partition is not None and (routes is None or routes.get(self._partition) is None):
            topic = await self._cluster.anywhere(Call("GET", topic_path(self.topic)), retry=True)
            count = len(topic.document()["partitions"])
            if self._partition not in range(count):  # else it is so new that nobody leads it
                raise unknown_partition(self.topic, self._partition, count)
        if self._partition is None and routes is not None and len(routes.partitions) == 1:
            self._partition = routes.partitions[0].partition  # its leader is asked, without a hop
            self._path = group_path(self.topic, self.group, self._partition)
        await self._cluster.learn_agents()
        path = group_path(self.topic, self.group)
        try:
            document = (await self._cluster.anywhere(Call("GET", path), retry=True)).document()
        except ShoalError as error:
            if error.code != "unknown-group":
                raise
            if mode is None and not self._is_chosen:
                self._is_new = True
                return dict(UNKNOWN)
        else:
            if mode in (None, document.get("mode")):
                return document
        body = json.dumps({} if mode is None else {"mode": mode}).encode()
        call = Call("PUT", path, headers={"Content-Type": "application/json"}, body=body)
        return (await self._cluster.anywhere(call, retry=True)).document()

    def asking(self, limit: int, max_bytes: int, visibility_ms: int) -> ReceiveTerms:
        """The part of a receive that is always the same."""
        return ReceiveTerms(self.consumer, self._instance, limit, max_bytes, visibility_ms)

    async def receive(self, asking: ReceiveTerms, request: str, wait_ms: int, acks: Sequence[str]) -> Arrival:
        """Messages, for which an agent may hold the request so long."""
        body = receive_body(asking, request, wait_ms, acks)
        if self._is_new:
            call = receive_call(group_path(self.topic, self.group), body, wait_ms)
            answer = await self._cluster.anywhere(call, retry=True)
            self._is_new = False
        else:
            answer = await self._ask(receive_call(self._path, body, wait_ms))
        return arrival_of(answer)._replace(again=body.again)

    async def receive_again(self, asking: ReceiveTerms, request: str) -> Arrival:
        """The messages of an earlier receive that was cut off; where it brought none, perhaps one."""
        body = receive_body(asking._replace(limit=1), request, 0, ())
        return arrival_of(await self._ask(receive_call(self._path, body, 0)._replace(body=body.repeat())))

    async def act(self, request: ActRequest) -> Heard:
        """Say a word."""
        body = act_body(request)
        failed = refusals(await self._ask(act_call(self._path, request, body)))
        again = request.again or body.again  # then a receipt was used by this very word
        unheard = {receipt for receipt, code in failed if _may_succeed(code)}
        late = sum(
            receipt not in unheard and not (again and code == "receipt-used") for receipt, code in failed
        )
        return Heard(frozenset(unheard), late)

    async def extend(self, receipts: Sequence[str], visibility_ms: int) -> tuple[set[str], set[str]]:
        """Hold answers on; those that are not held any more, and those whose leader did not answer."""
        failed = refusals(await self._ask(extend_call(self._path, receipts, visibility_ms)))
        unheard = {receipt for receipt, code in failed if _may_succeed(code)}
        return {receipt for receipt, _ in failed} - unheard, unheard

    async def present(self, *, leaves: bool = False) -> None:
        """Tell an exclusive group that this consumer is there, or goes."""
        path = group_path(self.topic, self.group)
        call = presence_call(path, self.consumer, self._instance, leaves=leaves)
        await self._cluster.anywhere(call, retry=True)

    async def _ask(self, call: Call) -> Answer:
        """At the leader of the one partition, or at any agent, which knows the leaders."""
        if self._partition is None:
            return await self._cluster.anywhere(call, retry=True)
        return await self._cluster.at_leader(self.topic, self._partition, call, DEPOSED_GRACE_MS)


def _may_succeed(code: str) -> bool:
    """Whether it is a partition that could not answer, and no verdict about the receipt."""
    return is_error_code(code) and ERRORS[code].retriable
