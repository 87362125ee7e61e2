"""What the shell completes: names of topics and members, asked of the agent in a moment or not at all.

Law of this file: the standard library only, one request, no word to the terminal.
"""

from __future__ import annotations

import json
import os
from typing import Any

from shoal.agent.cli.terminal.output import DEFAULT_AGENT, CliError, agent_urls

ANSWER_SECONDS = 0.5
"""For whoever has pressed a key: later, nothing is completed."""
ANSWER_BYTES_MAX = 1 << 20


def complete_topic(incomplete: str) -> list[str]:
    """The topics whose names begin so, of the agent that SHOAL_AGENT names; none if it does not answer."""
    return _names("topics", incomplete)


def complete_member(incomplete: str) -> list[str]:
    """Likewise the members."""
    return _names("members", incomplete)


def _names(what: str, incomplete: str) -> list[str]:
    from urllib.request import urlopen  # only now: no other command needs it

    try:
        url = agent_urls(os.environ.get("SHOAL_AGENT") or DEFAULT_AGENT)[0]
        with urlopen(f"{url}/v1/{what}", timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            listed: list[dict[str, Any]] = json.loads(answer.read(ANSWER_BYTES_MAX))[what]
    except (CliError, OSError, ValueError, KeyError):
        return []
    return sorted({str(entry["name"]) for entry in listed if str(entry.get("name")).startswith(incomplete)})
