"""`shoal drain`: move an agent's replicas and leadership to other agents, and watch the move.

Law of this file: it requests, watches and takes back a drain. The agent stores the request, and the cluster
carries it out. `verdict`, which is pure, decides the last message and the exit code.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.terminal.completion import complete_member
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    argument,
    example,
    flag,
    option,
)
from shoal.agent.cli.terminal.output import CliError, plural, say, tell
from shoal.agent.cli.terminal.progress import ProgressBar
from shoal.agent.cli.terminal.run import with_admin

if TYPE_CHECKING:
    from shoal.client.async_admin import AdminClient

POLL_SECONDS = 0.25
STUCK_SECONDS = 10.0
"""A drain is stuck when no replica has moved for so long and the agent reports the replicas that block it."""

app = typer.Typer()


@app.command(
    epilog=example(
        "shoal drain herring && shoal leave --agent http://10.0.0.7:7070", "shoal drain herring --undo"
    )
)
def drain(
    member: Annotated[
        str | None,
        argument("MEMBER", "A member's name or id; by default the agent asked.", complete_member),
    ] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    undo: Annotated[bool, flag("Let the agent hold replicas again.", "--undo")] = False,
    wait: Annotated[bool, flag("Watch until the agent is empty.", "--wait/--no-wait")] = True,
    timeout: Annotated[float, option("SECONDS", "How long to watch.", "--timeout", min=0.0)] = 3_600.0,
) -> None:
    """Move an agent's replicas and leadership to the others, so that it can be stopped for good.

    A drain lasts until --undo, also over restarts. It goes on when this command is interrupted; the same
    command watches it again. The exit code is 0 once the agent is empty and safe to stop.
    """
    url = agent if member is None else with_admin(agent, lambda client: _url_of(client, member))
    if undo:
        document = with_admin(url, lambda client: client.drain(undo=True))
        tell(document, output, f"{document['name']} takes replicas again")
        return
    document = with_admin(url, lambda client: client.drain())
    if wait:
        try:
            document = with_admin(url, lambda client: _watch(client, document, timeout))
        except KeyboardInterrupt:
            say(f"the drain of {document['name']} goes on; run this again to watch, --undo takes it back")
            raise
    message, advice, safe = verdict(document, waited=wait)
    tell(document, output, message if safe or not wait else "")
    if wait and not safe:
        raise CliError(message, advice)


async def _url_of(client: AdminClient, member: str) -> str:
    found = [
        item
        for item in (await client.members())["members"]
        if member in (item["id"], item.get("name")) and item.get("url")
    ]
    if len(found) != 1:
        trouble = "no member" if not found else f"{len(found)} members are"
        raise CliError(f"{trouble} called {member!r}", "`shoal members` shows them; give the id")
    if found[0]["status"] not in ("alive", "suspect"):
        raise CliError(
            f"{member} is {found[0]['status']}: it cannot hand anything over",
            "other agents get new replicas after --replace-after",
        )
    return str(found[0]["url"])


async def _watch(client: AdminClient, document: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """The last document: empty, stuck, or out of time."""
    started = moved = time.monotonic()
    bar = ProgressBar(sys.stderr)
    most = max(1, document["replicas"])
    try:
        while True:
            bar.update(1 - document["replicas"] / most, f"{plural(document['replicas'], 'replica')} left")
            now = time.monotonic()
            stuck = bool(document["blocked"]) and now - moved >= STUCK_SECONDS
            if not document["replicas"] or not document["draining"] or stuck or now - started >= timeout_s:
                return dict(document)
            await asyncio.sleep(POLL_SECONDS)
            before, document = document, await client.drain_status()
            most = max(most, document["replicas"])
            if document["replicas"] != before["replicas"]:
                moved = time.monotonic()
    finally:
        bar.close()


def verdict(document: Mapping[str, Any], *, waited: bool) -> tuple[str, str, bool]:
    """The message, the advice, and whether the agent is safe to stop."""
    name = document["name"]
    if document["safe_to_stop"]:
        return f"{name} holds no replicas: it is safe to stop", "", True
    left = f"{plural(document['replicas'], 'replica')} left, {document['leads']} of them leading"
    if not document["draining"]:
        return f"{name} was told to take replicas again ({left})", "", False
    if document["blocked"]:
        return (
            f"the drain of {name} is stuck ({left}): {'; '.join(document['blocked'])}",
            "start more agents, and it goes on by itself; --undo takes it back",
            False,
        )
    if not waited:
        return f"{name} is being drained ({left})", "", False
    return f"{name} is not empty yet ({left})", "it goes on by itself; run this again to watch", False
