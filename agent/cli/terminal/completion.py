"""Names of topics, groups and members for the shell's completion, asked of one agent in half a second.

Law of this file: one answer is taken, nothing is printed, and every failure completes nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import MutableMapping, Sequence
from contextlib import closing
from typing import Any

ANSWER_SECONDS = 0.5  # somebody has pressed a key and waits
ANSWER_BYTES_MAX = 1 << 20
AGENTS_ASKED_MAX = 3  # of several that are named: a stopped one refuses at once, and the next is asked
BASH_WORDS, BASH_WORD = "COMP_WORDS", "COMP_CWORD"  # what typer's script for bash hands over, a word a line
_BREAK = re.compile("[:=@]+")  # of bash's COMP_WORDBREAKS, those that stand inside a URL, an option or a time


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """Topics whose names begin so, from the agent that the line names, else from that in SHOAL_AGENT; none if
    it does not answer."""
    return _names(ctx, "topics", incomplete)


def complete_member(ctx: Any, incomplete: str) -> list[str]:
    """Likewise the members."""
    return _names(ctx, "members", incomplete)


def complete_group(ctx: Any, incomplete: str) -> list[str]:
    """Likewise the consumer groups of the topic that the line names before."""
    from urllib.parse import quote

    known = ctx.params.get("topic") or ctx.params.get("topics")
    topic = known[0] if isinstance(known, list | tuple) and known else known
    return _names(ctx, "groups", incomplete, f"/v1/topics/{quote(topic, safe='')}") if topic else []


def _names(context: Any, what: str, incomplete: str, below: str = "/v1") -> list[str]:
    from http.client import HTTPException  # only now: no other command needs it

    from shoal.client.http.routes import bootstrap_urls

    try:
        urls = bootstrap_urls(_agent_of(context))
    except ValueError:
        return []
    for url in urls[:AGENTS_ASKED_MAX]:
        try:
            listed = json.loads(_answer(url.rstrip("/"), f"{below}/{what}"))[what]
            names = {str(entry["name"]) for entry in listed if entry.get("name")}
        except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
            continue
        return sorted(name for name in names if name.startswith(incomplete))
    return []


def _answer(url: str, path: str) -> bytes:
    """The body of a GET, from a URL or by the path of a socket. Raises OSError, HTTPException."""
    import socket
    from http.client import HTTPConnection
    from urllib.request import urlopen

    from shoal.client.http.routes import UNIX

    if not url.startswith(UNIX):
        with urlopen(url + path, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            return bytes(answer.read(ANSWER_BYTES_MAX))
    with closing(HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(ANSWER_SECONDS)
        connection.sock.connect(url.removeprefix(UNIX))
        connection.request("GET", path)
        return connection.getresponse().read(ANSWER_BYTES_MAX)


def _agent_of(context: Any) -> str | None:
    """The command's own --agent, or the one before the command, or SHOAL_AGENT."""
    while context is not None:
        source = context.get_parameter_source("agent")
        if source is not None and source.name == "COMMANDLINE":
            return str(context.params["agent"])
        context = context.parent
    return os.environ.get("SHOAL_AGENT") or None


def join_bash_words(environment: MutableMapping[str, str]) -> None:
    """Put together in the environment what bash has cut, before typer reads it."""
    try:
        at = int(environment[BASH_WORD])
        words, at = joined_words(environment[BASH_WORDS].split("\n"), at)
    except (KeyError, ValueError):
        return  # no shell has asked
    environment.update({BASH_WORDS: "\n".join(words), BASH_WORD: str(at)})


def joined_words(pieces: Sequence[str], at: int) -> tuple[list[str], int]:
    """The words of a line that bash has cut at `:`, `=` and `@`, and which of them the piece `at` is in.

    Bash does not say where blanks stood. A separator behind an option is its value, as in `-K :`. Only the
    `=` of a long one joins what follows to it.
    """
    words: list[str] = []
    place = len(pieces)
    goes_on = False
    for index, piece in enumerate(pieces):
        before = words[-1] if words else "-"
        is_option = before.startswith("-") and "=" not in before
        takes_more = not is_option or (before.startswith("--") and piece.startswith("="))
        is_break = _BREAK.fullmatch(piece) is not None
        is_inside = is_break and takes_more and not piece.startswith("@")
        if goes_on or is_inside:
            words[-1] += piece
        else:
            words.append(piece)
        goes_on = is_inside or (is_break and piece.startswith("@"))
        if index == at:
            place = len(words) - 1
    return words, place if at < len(pieces) else len(words) + at - len(pieces)
