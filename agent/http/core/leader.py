"""Where a partition, or the catalog, is led: asked here first, then there, while leadership moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from shoal.agent.http.core.context import Call, Context, Deadline
from shoal.agent.http.core.forward import Reply
from shoal.agent.interface import Leader, Topic
from shoal.agent.log_lines.names import agent_name
from shoal.agent.security.access import Proof
from shoal.errors import ErrorCode, ShoalError

T = TypeVar("T")

# Between two attempts while leadership moves; short beside an election (0.6 s), long beside a round trip.
RETRY_PAUSE_SECONDS = 0.05
MOVING_CODES: frozenset[ErrorCode] = frozenset(("not-leader", "no-leader"))
# Codes of an agent that is leaving or has just come: another agent is about to lead.
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
    """The answer of the leader that was asked. ShoalError leadership-lost once another agent leads and the
    first one is silent. A leader that has stopped or is cut off may never answer, so the caller has to ask
    again. A leader that has merely handed over does answer."""
    asked = asyncio.ensure_future(exchange)
    try:
        while not (await asyncio.wait({asked}, timeout=look_seconds))[0]:
            now = context.broker.leader(topic, partition)
            if now is None or now.agent_id == leader.agent_id or context.broker.hears(leader.agent_id):
                continue
            raise ShoalError(
                "leadership-lost",
                f"{agent_name(leader.agent_id)} led, was asked and fell silent; it may have happened",
            )
        return asked.result()
    finally:
        asked.cancel()
        await asyncio.wait({asked})


class Led(NamedTuple):
    """A partition or the catalog, and how to find its leader. `find`: its leader, in so many milliseconds at
    most; ShoalError no-leader when there is none in time."""

    name: str
    find: Callable[[int], Awaitable[Leader]]


def partition_of(call: Call, topic: Topic, partition: int) -> Led:
    """One partition."""
    broker = call.context.broker
    return Led(
        f"{topic.name}/{partition}", lambda timeout_ms: broker.wait_leader(topic, partition, timeout_ms)
    )


def catalog_of(call: Call) -> Led:
    """The catalog."""

    async def find(timeout_ms: int) -> Leader:
        deadline = Deadline(timeout_ms)
        while (leader := call.context.broker.catalog_leader()) is None:
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise ShoalError("no-leader", "the catalog has no leader at present")
        return leader

    return Led("the catalog", find)


async def at_leader(
    call: Call,
    led: Led,
    here: Callable[[], Awaitable[T]],
    there: Callable[[Leader], Awaitable[T]],
    deadline: Deadline,
    *,
    first: Callable[[], Awaitable[T]] | None = None,
    reads: bool = False,
) -> T:
    """The answer of this agent, or of the leader, which is followed while it moves, until the deadline.

    Only refusals are tried again that say that nothing happened. `first`: what this agent is asked before
    the leader is known, if not `here`. ShoalError no-leader when no leader was found in time. `reads`: the
    last refusal is raised instead, and a stop of this agent ends the search, as it ends long polls.
    """
    try:
        return await (first or here)()
    except ShoalError as error:
        if error.code not in MOVING_CODES or not error.definite or not call.may_forward():
            raise
    while True:
        leader = await led.find(deadline.remaining_ms())
        call.asker.go_on()
        try:
            if leader.local:
                return await here()
            _require_client(call, led, leader)
            return await there(leader)
        except ShoalError as error:
            if error.code not in (MOVING_CODES if leader.local else PASSING_CODES) or not error.definite:
                raise
            if reads and call.context.waits.stopped:
                raise
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                if reads:
                    raise
                detail = f"no leader of {led.name} was found in time: {error.detail}"
                raise ShoalError("no-leader", detail, definite=True, **error.extra) from None


def _require_client(call: Call, led: Led, leader: Leader) -> None:
    """Raises ShoalError forbidden for somebody who has shown an agent's own certificate. A forwarder's
    certificate is never its client's, so the leader would take the request for nobody's."""
    if call.asker.identity.proof is Proof.AGENT:
        raise ShoalError(
            "forbidden",
            "an agent's certificate counts only at the agent that does what is asked: ask"
            f" {agent_name(leader.agent_id)} at {leader.url}, which leads {led.name}",
        )
