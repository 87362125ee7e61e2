"""Names of topics, groups and members for the shell's completion, asked of one agent in half a second.

Law of this file: one answer is taken, nothing is printed, and every failure completes nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import MutableMapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from shoal.agent.cli.terminal.connection import OPTIONS, chosen
from shoal.agent.cli.terminal.output import CliError

if TYPE_CHECKING:
    from shoal.credentials import Credentials

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
    from shoal.errors import ClientError

    try:
        agent, credentials = _asked_as(context)
        urls = bootstrap_urls(agent)
    except (ValueError, ClientError, CliError):
        return []
    for url in urls[:AGENTS_ASKED_MAX]:
        try:
            listed = json.loads(_answer(url.rstrip("/"), f"{below}/{what}", credentials))[what]
            names = {str(entry["name"]) for entry in listed if entry.get("name")}
        except (ClientError, OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
            continue
        return sorted(name for name in names if name.startswith(incomplete))
    return []


def _answer(url: str, path: str, credentials: Credentials) -> bytes:
    """The body of a GET, from a URL or by the path of a socket. Raises OSError, HTTPException."""
    import socket
    from http.client import HTTPConnection
    from urllib.request import Request, urlopen

    from shoal.client.http.routes import UNIX
    from shoal.tls import client_context

    if not url.startswith(UNIX):
        tls = client_context(credentials) if url.startswith("https:") else None
        request = Request(url + path, headers=credentials.headers)  # noqa: S310
        with urlopen(request, timeout=ANSWER_SECONDS, context=tls) as answer:  # noqa: S310
            return bytes(answer.read(ANSWER_BYTES_MAX))
    with closing(HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(ANSWER_SECONDS)
        connection.sock.connect(url.removeprefix(UNIX))
        connection.request("GET", path, headers=credentials.headers)
        return connection.getresponse().read(ANSWER_BYTES_MAX)


def _asked_as(context: Any) -> tuple[str, Credentials]:
    """By the command's own options, or those before the command, or as the environment and the context say.
    Raises ClientError and CliError."""
    from shoal.credentials import credentials_of

    agent: str | None = None
    typed: dict[str, str | None] = {}
    while context is not None:
        source = context.get_parameter_source("agent")
        if source is not None and source.name == "COMMANDLINE" and agent is None:
            agent = str(context.params["agent"])
        typed = {name: context.params.get(name) for name in OPTIONS[:3]} | typed
        context = context.parent
    agent, known = chosen(agent or os.environ.get("SHOAL_AGENT") or None, typed)
    given = {name: getattr(known, name) or None for name in OPTIONS}
    return agent, credentials_of(os.environ, **given)


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
