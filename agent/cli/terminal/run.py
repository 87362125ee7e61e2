"""Runs a command's work against a cluster, and turns every failure into one line and an exit code.

Law of this file: the only place that knows which exceptions end a command and what advice belongs to each.
The client is imported when work begins, so that --help stays quick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from shoal.agent.cli.terminal.output import DEFAULT_AGENT, CliError, agent_urls

if TYPE_CHECKING:
    from shoal.client.async_admin import AdminClient
    from shoal.client.async_client import AsyncClient
    from shoal.client.http.requests import ClientConfig

T = TypeVar("T")
C = TypeVar("C", bound="AdminClient")

ADVICE = {
    "unknown-topic": "`shoal topic list` shows the topics, `shoal topic create NAME` makes one",
    "unknown-partition": "`shoal topic describe TOPIC` shows its partitions",
    "unknown-member": "`shoal members` shows the members",
    "topic-differs": "`shoal topic describe TOPIC` shows what it is; leave the options out to accept that",
    "not-enough-members": "start more agents, give a smaller --replication-factor, or name an agent of"
    " another cluster with --agent URL",
    "no-leader": "`shoal status` shows which partitions and members are in trouble",
    "not-ready": "`shoal status --wait` returns once the cluster is ready",
    "overloaded": "send more slowly (--rate), or start more agents",
    "disk-full": "make room on the agent's disk, or delete a topic",
    "trimmed": "start at --from earliest",
    "beyond-end": "start at --from latest, or at an offset within the log",
    "too-large": "a record may have at most 8 MiB",
}


TOLD_WITH_CLUSTER = ("not-enough-members", "unknown-topic", "unknown-member")
"""What another cluster's agent would have answered otherwise: these are told with who was asked."""


HTTP_ADVICE = ": create it with PUT "
"""Where advice for those who speak HTTP begins: here `ADVICE` has the command."""


def with_client(
    agent: str, work: Callable[[AsyncClient], Awaitable[T]], config: ClientConfig | None = None
) -> T:
    """Run `work` with a client of the agents named. Raises CliError for every failure that has an
    explanation.
    """
    urls = _urls(agent)
    from shoal.client.async_client import AsyncClient

    return _explained(AsyncClient(urls, _at_once(config)), work)


def with_admin(
    agent: str, work: Callable[[AdminClient], Awaitable[T]], config: ClientConfig | None = None
) -> T:
    """As with_client, for what needs no records: it starts without what those take."""
    urls = _urls(agent)
    from shoal.client.async_admin import AdminClient

    return _explained(AdminClient(urls, _at_once(config)), work)


def _at_once(config: ClientConfig | None) -> ClientConfig:
    """A command says at once that no agent is there: whoever typed it sees that sooner than it can wait."""
    from shoal.client.http.requests import ClientConfig

    return replace(config or ClientConfig(), first_contact_ms=0)


def _urls(agent: str) -> list[str]:
    urls = agent_urls(agent)
    from shoal.client.http.routes import bootstrap_urls

    try:
        bootstrap_urls(urls)
    except ValueError as error:
        raise CliError(f"--agent: {error}", f"give one like {DEFAULT_AGENT}", exit_code=2) from error
    return urls


async def _whom(client: AdminClient) -> str:
    """The agent that answered and its cluster, for people; nothing if it does not answer any more."""
    from shoal.client.http.requests import Unreachable
    from shoal.errors import ShoalError

    try:
        agent = await client.agent()
    except (ShoalError, Unreachable):
        return ""
    cluster = f" of cluster {agent['cluster']}" if agent.get("cluster") else ""
    return f", says {agent.get('name') or 'the agent'}{cluster} at {client.asked}"


def _explained(client: C, work: Callable[[C], Awaitable[T]]) -> T:
    from shoal.client.http.requests import Unreachable
    from shoal.errors import ShoalError

    async def body() -> T:
        async with client:
            try:
                return await work(client)
            except ShoalError as error:
                if error.code in TOLD_WITH_CLUSTER:
                    error.detail = error.detail.partition(HTTP_ADVICE)[0] + await _whom(client)
                raise

    try:
        return asyncio.run(body())
    except ShoalError as error:
        raise CliError(f"{error.detail} ({error.code})", ADVICE.get(error.code, "")) from error
    except Unreachable as error:
        advice = (
            "is an agent running? Start one with `shoal dev`, or name one with --agent URL or SHOAL_AGENT"
        )
        raise CliError(error.detail, advice) from error
