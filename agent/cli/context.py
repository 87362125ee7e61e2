"""`shoal context`: clusters by name, so that no command has to be told agents, token and authority again.

Law of this file: it changes the user's own file and asks no agent. No token is shown.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Annotated, Any

from shoal.agent.cli.terminal.contexts import (
    MEMBERS,
    KnownCluster,
    KnownClusters,
    check_name,
    config_path,
    read_contexts,
    write_contexts,
)
from shoal.agent.cli.terminal.options import Output, OutputOption, argument, example, group, option
from shoal.agent.cli.terminal.output import CliError, UsageError, say, show_json, show_table, tell

SET = "(set, not shown)"
TOKEN_BYTES_MAX = 8_192

context = group(
    "context",
    "Clusters by name: agents, token and authority, kept in ~/.config/shoal/config.toml.",
    "shoal context set fish --agent https://anchovy:7070 --token @fish.token --ca fish-ca.pem",
    "shoal context use fish",
)


def complete_context(ctx: Any, incomplete: str) -> list[str]:
    """The names that begin so; none where the file cannot be read."""
    try:
        return sorted(name for name in _read().known if name.startswith(incomplete))
    except CliError:
        return []


NameArgument = Annotated[str, argument("NAME", "The name of the context.", complete=complete_context)]


def _read() -> KnownClusters:
    return read_contexts(config_path(os.environ))


def _shown(name: str, one: KnownCluster, *, is_current: bool) -> dict[str, Any]:
    token = one.token if one.token.startswith("@") or not one.token else SET
    known = {member: getattr(one, member) or None for member in MEMBERS}
    return {"name": name, "current": is_current, **known, "token": token or None}


@context.command("list", epilog=example("shoal context list"))
def list_contexts(output: OutputOption = Output.TABLE) -> None:
    """List the contexts; * marks the one in use."""
    contexts = _read()
    rows = [
        _shown(name, one, is_current=name == contexts.current) for name, one in sorted(contexts.known.items())
    ]
    if output is Output.JSON:
        show_json({"contexts": rows})
        return
    cells = [
        ["*" if row["current"] else "", row["name"], *(row[one] or "-" for one in MEMBERS)] for row in rows
    ]
    show_table(["", "NAME", *(one.upper() for one in MEMBERS)], cells, whole=("NAME",))
    if not rows:
        say("there is no context; `shoal context set NAME --agent URL` makes one")


@context.command("show", epilog=example("shoal context show", "shoal context show fish --json"))
def show(
    name: Annotated[str | None, argument("NAME", "The context; without it the one in use.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a context, but for its token."""
    contexts = _read()
    if name is None and not contexts.current:
        raise CliError("no context is in use", "`shoal context use NAME` chooses one")
    wanted = name or contexts.current
    row = _shown(wanted, contexts.named(wanted), is_current=wanted == contexts.current)
    if output is Output.JSON:
        show_json(row)
        return
    show_table(["SETTING", "VALUE"], [[key, str(value)] for key, value in row.items() if value is not None])


@context.command("use", epilog=example("shoal context use fish"))
def use(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Let commands use a context. Options and variables that name agents go before it."""
    contexts = _read()
    row = _shown(name, contexts.named(name), is_current=True)
    write_contexts(config_path(os.environ), replace(contexts, current=name))
    tell(row, output)
    if os.environ.get("SHOAL_AGENT"):
        say("SHOAL_AGENT is set, and goes before the context")


@context.command(
    "set",
    epilog=example(
        "shoal context set fish --agent https://anchovy:7070 --token @fish.token --ca ca.pem",
        "shoal context set fish --token - < fish.token",
    ),
)
def set_(
    name: NameArgument,
    agent: Annotated[str | None, option("URL[,URL]", "An agent's URL, or several.", "--agent")] = None,
    token: Annotated[
        str | None,
        option("@FILE|-", "A file that has the token; - reads it from standard input and keeps it here."),
    ] = None,
    ca: Annotated[str | None, option("FILE", "The authority of the agents' certificates.", "--ca")] = None,
    certificate: Annotated[str | None, option("FILE", "Your own certificate.")] = None,
    key: Annotated[str | None, option("FILE", "Its key.", "--certificate-key")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make or change a context; what is left out stays as it is, and '' takes it away.

    The first context is used at once.
    """
    from shoal.client.http.routes import bootstrap_urls
    from shoal.credentials import credentials_of
    from shoal.errors import ClientError

    contexts = _read()
    given = {"agent": agent, "token": _kept_token(token), "ca": ca, "certificate": certificate, "key": key}
    for member in ("ca", "certificate", "key"):
        if value := given[member]:
            given[member] = os.path.abspath(value)
    changed = {member: value for member, value in given.items() if value is not None}
    one = replace(contexts.known.get(check_name(name), KnownCluster()), **changed)
    try:
        bootstrap_urls(one.agent)
        credentials_of(
            {}, token=one.token, ca=one.ca, certificate=one.certificate or None, key=one.key or None
        )
    except ValueError as error:
        raise UsageError(f"--agent: {error}") from None
    except ClientError as error:
        raise CliError(str(error)) from None
    made = KnownClusters(contexts.current or name, {**contexts.known, name: one})
    write_contexts(config_path(os.environ), made)
    tell(_shown(name, one, is_current=made.current == name), output)


def _kept_token(text: str | None) -> str | None:
    """As the file keeps it. Raises UsageError for a token itself, without showing it again, and for none."""
    if text == "-":
        if token := sys.stdin.read(TOKEN_BYTES_MAX).strip():
            return token
        raise UsageError("standard input has no token", "--token '' takes away the one that is kept")
    if text and not text.startswith("@"):
        raise UsageError(
            "--token takes @FILE or -: a token in a command line shows in every process list",
            "put it into a file of your own",
        )
    return f"@{os.path.abspath(text[1:])}" if text else text


@context.command("remove", epilog=example("shoal context remove fish"))
def remove(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Remove a context from the file. The files that it names stay."""
    contexts = _read()
    contexts.named(name)
    known = {other: one for other, one in contexts.known.items() if other != name}
    current = "" if contexts.current == name else contexts.current
    write_contexts(config_path(os.environ), KnownClusters(current, known))
    tell({"removed": name}, output)
