"""Names of topics and members for the shell's completion, asked of one agent in half a second.

Law of this file: one request, nothing is printed, and every failure completes nothing.
"""

from __future__ import annotations

import json
import os
from typing import Any

ANSWER_SECONDS = 0.5  # somebody has pressed a key and waits
ANSWER_BYTES_MAX = 1 << 20


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """Topics whose names begin so, from the agent that the line names, else from that in SHOAL_AGENT; none if
    it does not answer."""
    return _names(ctx, "topics", incomplete)


def complete_member(ctx: Any, incomplete: str) -> list[str]:
    """Likewise the members."""
    return _names(ctx, "members", incomplete)


def _names(context: Any, what: str, incomplete: str) -> list[str]:
    from urllib.request import urlopen  # only now: no other command needs it

    from shoal.client.http.routes import bootstrap_urls

    try:
        url = bootstrap_urls(_agent_of(context))[0].rstrip("/")
        with urlopen(f"{url}/v1/{what}", timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            listed: list[dict[str, Any]] = json.loads(answer.read(ANSWER_BYTES_MAX))[what]
    except (OSError, ValueError, KeyError):
        return []
    return sorted({str(entry["name"]) for entry in listed if str(entry.get("name")).startswith(incomplete)})


def _agent_of(context: Any) -> str | None:
    """The command's own --agent, or the one before the command, or SHOAL_AGENT."""
    while context is not None:
        source = context.get_parameter_source("agent")
        if source is not None and source.name == "COMMANDLINE":
            return str(context.params["agent"])
        context = context.parent
    return os.environ.get("SHOAL_AGENT") or None
