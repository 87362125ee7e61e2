"""Runs a command's work against a cluster, and turns every failure into one line and an exit code.

Law of this file: no other place knows which exceptions end a command, and the advice for each. The client is
imported when work begins, so that --help stays quick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from shoal.agent.cli.terminal.connection import credential_options
from shoal.agent.cli.terminal.output import CliError, UsageError

if TYPE_CHECKING:
    from shoal.client.async_admin import AdminClient
    from shoal.client.async_client import AsyncClient
    from shoal.client.http.requests import ClientConfig

T = TypeVar("T")
C = TypeVar("C", bound="AdminClient")

ADVICE = {
    "unknown-topic": "`shoal topic list` shows the topics, `shoal topic create NAME` makes one, with --kind"
    " one of another kind",
    "unknown-partition": "`shoal topic describe TOPIC` shows its partitions",
    "unknown-group": "`shoal group list TOPIC` shows the topic's groups, `shoal group create TOPIC GROUP`"
    " makes one",
    "wrong-kind": "`shoal topic describe TOPIC` shows its kind; `shoal topic create NAME --kind table` makes"
    " a table",
    "group-differs": "`shoal group describe TOPIC GROUP` shows its settings, `shoal group change` changes"
    " them; mode and start are fixed",
    "consumer-in-use": "give another --consumer, or end the other process",
    "unknown-member": "`shoal members` shows the members",
    "unknown-principal": "`shoal secure principal list` shows them, `shoal secure principal put` makes one",
    "unknown-role": "`shoal secure role list` shows them, `shoal secure role put` makes one",
    "unknown-token": "`shoal secure token list` shows them",
    "too-many-tokens": "`shoal secure token list` shows them, `shoal secure token revoke` ends one",
    "topic-differs": "`shoal topic config TOPIC` shows its settings, `shoal topic alter TOPIC` changes them;"
    " an option that is left out means the default",
    "settings-changed": "`shoal topic config TOPIC` shows what they are now; leave --if-version out to change"
    " them all the same",
    "not-enough-members": "start more agents, give a smaller --replication-factor, or name an agent of"
    " another cluster with --agent URL",
    "no-leader": "`shoal status` shows which partitions and members are in trouble",
    "not-ready": "`shoal status --wait` returns once the cluster is ready",
    "overloaded": "send more slowly (--rate), or start more agents",
    "disk-full": "make room on the agent's disk, or delete a topic",
    "trimmed": "start at --from earliest",
    "beyond-end": "give latest, or an offset within the log",
    "too-large": "a record may have at most 8 MiB",
    "unauthenticated": "--token @FILE or SHOAL_TOKEN gives a token, `shoal context set` keeps one",
    "too-many-failed-logins": "the token is wrong, has expired or was revoked: take another",
    "forbidden": "an administrator can grant it, or take another token",
}
NOBODY_ADVICE = "is an agent running? Start one with `shoal dev`, or name one with --agent URL or SHOAL_AGENT"

TLS_ADVICE = "--ca, --certificate and --certificate-key name files; `shoal context set` keeps them"

TOLD_WITH_CLUSTER = ("not-enough-members", "unknown-topic", "unknown-member")
"""Another cluster's agent may answer otherwise: these errors name the agent that was asked."""

HTTP_ADVICE = (": create it with PUT ", ": start more agents, or leave the factor out")
"""The advice for HTTP clients begins so; `ADVICE` has the command instead."""


def with_client(agent: str, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Run `work` with a client of these agents. Raises CliError for every failure with a known cause."""
    from shoal.client.async_client import AsyncClient

    return _explained(lambda: AsyncClient(_urls(agent), _settings(), **credential_options()), work)


def with_admin(
    agent: str, work: Callable[[AdminClient], Awaitable[T]], attempt_timeout_ms: int | None = None
) -> T:
    """As with_client, without pyarrow: for commands without records."""
    from shoal.client.async_admin import AdminClient

    config = _settings(attempt_timeout_ms)
    return _explained(lambda: AdminClient(_urls(agent), config, **credential_options()), work)


def _settings(attempt_timeout_ms: int | None = None) -> ClientConfig:
    """A command fails at once where no agent answers, instead of waiting for one to start."""
    from shoal.client.http.requests import ClientConfig

    config = ClientConfig(first_contact_ms=0)
    return config if attempt_timeout_ms is None else replace(config, attempt_timeout_ms=attempt_timeout_ms)


def _urls(agent: str) -> list[str]:
    from shoal.client.http.routes import bootstrap_urls

    try:
        return bootstrap_urls(agent)
    except ValueError as error:
        raise UsageError(f"--agent: {error}") from error  # with an example


async def with_asked(detail: str, client: AdminClient) -> str:
    """The error with the agent that answered, its cluster and URL instead of advice for HTTP clients; without
    them if it no longer answers."""
    from shoal.client.http.requests import Unreachable
    from shoal.errors import ShoalError

    for begin in HTTP_ADVICE:
        detail = detail.partition(begin)[0]
    try:
        agent = await client.agent()
    except (ShoalError, Unreachable):
        return detail
    name = agent.get("name") or "the agent"
    named = f"(agent {name} was asked)"
    if named in detail:
        return detail.replace(named, f"(agent {name} at {client.asked} was asked)")
    cluster = f" of cluster {agent['cluster']}" if agent.get("cluster") else ""
    return f"{detail}, says {name}{cluster} at {client.asked}"


def _explained(make: Callable[[], C], work: Callable[[C], Awaitable[T]]) -> T:
    from shoal.client.http.failures import Unreachable, Untrusted
    from shoal.errors import ClientError, ShoalError

    try:
        client = make()
    except ClientError as error:
        raise CliError(str(error)) from None

    async def body() -> T:
        async with client:
            try:
                return await work(client)
            except ShoalError as error:
                if error.code in TOLD_WITH_CLUSTER:
                    error.detail = await with_asked(error.detail, client)
                raise

    try:
        return asyncio.run(body())
    except ShoalError as error:
        raise CliError(f"{error.detail} ({error.code})", ADVICE.get(error.code, "")) from error
    except Unreachable as error:
        advice = TLS_ADVICE if isinstance(error, Untrusted) else NOBODY_ADVICE
        raise CliError(error.detail, advice) from error
