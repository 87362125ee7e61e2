"""Where a partition, or the catalog, is led: asked here first, then there, while leadership moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from shoal.agent.http.core.context import Call, Context, Deadline
from shoal.agent.http.core.forward import Reply
from shoal.agent.interface import Leader, Topic
from shoal.errors import ErrorCode, ShoalError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Between two attempts while leadership moves; short beside an election (0.6 s), long beside a round trip.
RETRY_PAUSE_SECONDS = 0.05
MOVING_CODES: frozenset[ErrorCode] = frozenset(("not-leader", "no-leader"))
# What an agent says that is leaving, or has just come: its leadership is about to be elsewhere.
PASSING_CODES: frozenset[ErrorCode] = MOVING_CODES | {"stopping", "not-ready"}
DEPOSED_LOOK_SECONDS = 0.05  # short against an election; a leader that works has answered by then


async def while_it_leads(
    context: Context,
    leader: Leader,
    topic: Topic,
    partition: int,
    exchange: Coroutine[Any, Any, Reply],
    look_seconds: float = DEPOSED_LOOK_SECONDS,
) -> Reply:
    """The answer of the leader that was asked; ShoalError leadership-lost once another leads and the first is
    not heard: stopped or cut off it may never answer, and whoever waits should ask again rather than wait for
    it. One that has merely handed over does answer."""
    asked = asyncio.ensure_future(exchange)
    try:
        while not (await asyncio.wait({asked}, timeout=look_seconds))[0]:
            now = context.broker.leader(topic, partition)
            if now is None or now.agent_id == leader.agent_id or context.broker.hears(leader.agent_id):
                continue
            raise ShoalError(
                "leadership-lost",
                f"{leader.agent_id[:8]} led, was asked, fell silent; it may have happened",
            )
        return asked.result()
    finally:
        asked.cancel()
        await asyncio.wait({asked})


class Here(Protocol[T_co]):
    """What to ask of the broker here. `as_leader`: this agent is known to lead."""

    async def __call__(self, *, as_leader: bool) -> T_co: ...


async def where_led(
    call: Call,
    topic: Topic,
    partition: int,
    here: Here[T_co],
    there: Callable[[Leader], Awaitable[T_co]],
    timeout_ms: int,
) -> T_co:
    """The answer of this agent, or of the partition's leader, followed while it moves."""
    try:
        return await here(as_leader=False)
    except ShoalError as error:
        if error.code not in MOVING_CODES or not call.may_forward():
            raise
    deadline = Deadline(timeout_ms)
    while True:
        leader = await call.context.broker.wait_leader(topic, partition, deadline.remaining_ms())
        try:
            return await here(as_leader=True) if leader.local else await there(leader)
        except ShoalError as error:
            if error.code not in (MOVING_CODES if leader.local else PASSING_CODES):
                raise
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise


async def at_catalog(
    call: Call,
    here: Callable[[int], Awaitable[T]],
    there: Callable[[str, int], Awaitable[T]],
    deadline: Deadline,
) -> T:
    """Do something where the catalog is led, following it while it moves."""
    while True:
        try:
            return await here(deadline.remaining_ms())
        except ShoalError as error:
            if error.code not in MOVING_CODES or not call.may_forward():
                raise
            refusal = error
        url = refusal.extra.get("leader_url")
        if isinstance(url, str):
            try:
                return await there(url, deadline.remaining_ms())
            except ShoalError as error:
                if error.code not in PASSING_CODES:
                    raise
                refusal = error
        if not await deadline.pause(RETRY_PAUSE_SECONDS):
            raise ShoalError("no-leader", f"no leader of the catalog was found in time: {refusal.detail}")
