"""What the shell completes: the names of topics, asked of the agent in a moment or not at all.

Law of this file: the standard library only, one request, no word to the terminal.
"""

from __future__ import annotations

import json
import os
import urllib.request

from shoal.agent.cli.output import DEFAULT_AGENT, CliError, agent_urls

ANSWER_SECONDS = 0.5
"""For whoever has pressed a key: later, nothing is completed."""
ANSWER_BYTES_MAX = 1 << 20


def complete_topic(incomplete: str) -> list[str]:
    """The topics whose names begin so, of the agent that SHOAL_AGENT names; none if it does not answer."""
    try:
        url = agent_urls(os.environ.get("SHOAL_AGENT") or DEFAULT_AGENT)[0]
        with urllib.request.urlopen(f"{url}/v1/topics", timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            topics = json.loads(answer.read(ANSWER_BYTES_MAX))["topics"]
    except (CliError, OSError, ValueError, KeyError):
        return []
    return [topic["name"] for topic in topics if topic["name"].startswith(incomplete)]
