"""`shoal keygen` and `shoal keys`: gossip keys, made here and rotated by the agents.

Law of this file: it reads keys from where people keep them and shows fingerprints; whether a step is safe is
the agent's to say.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.terminal.output import (
    DEFAULT_AGENT,
    AgentOption,
    CliError,
    Output,
    OutputOption,
    example,
    say,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.client.async_admin import AdminClient

ANSWER_TIMEOUT_MS = 60_000
"""Three queries to a pool of which some members do not answer take so long at most."""

KEY_FILE_BYTES_MAX = 4096

NewKey = Annotated[str, typer.Argument(metavar="KEY|@FILE", help="In base64, or a file that holds it.")]
KnownKey = Annotated[
    str,
    typer.Argument(metavar="FINGERPRINT|KEY|@FILE", help="As `shoal keys list` shows it, or the key itself."),
]
Force = Annotated[bool, typer.Option("--force", help="Even if members may be locked out.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `shoal`."""
    app.command(
        epilog=example("(umask 077; shoal keygen > gossip.key)", "shoal agent --gossip-key @gossip.key")
    )(keygen)
    keys = typer.Typer(
        help="The gossip keys of a running cluster: list them, rotate them.",
        epilog=example("shoal keys list", "shoal keys install @new.key", "shoal keys use @new.key"),
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    keys.command("list", epilog=example("shoal keys list"))(list_keys)
    keys.command("install", epilog=example("shoal keys install @new.key"))(install)
    keys.command("use", epilog=example("shoal keys use @new.key", "shoal keys use 9f86d081884c7d65"))(use)
    keys.command("remove", epilog=example("shoal keys remove 9f86d081884c7d65"))(remove)
    app.add_typer(keys, name="keys")


def keygen(
    size: Annotated[
        int, typer.Option("--bytes", metavar="16|24|32", help="The key's length: AES-128, 192 or 256.")
    ] = 32,
) -> None:
    """Print a new gossip key, in base64."""
    from shoal.membership.wire.keyring import KEY_BYTES, key_text

    if size not in KEY_BYTES:
        raise CliError(f"--bytes {size} is no length of a key", "give 16, 24 or 32", exit_code=2)
    print(key_text(os.urandom(size)))


def list_keys(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """Which keys the members hold, and which one each uses."""
    _show(_with_agent(agent, lambda client: client.gossip_keys()), output)


def install(key: NewKey, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """Have every member accept this key beside those it has."""
    _change("install", key, agent, output, force=False)


def use(
    key: KnownKey,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    force: Force = False,
) -> None:
    """Have every member seal with this key from now on; all must hold it already."""
    _change("use", key, agent, output, force=force)


def remove(
    key: KnownKey,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    force: Force = False,
) -> None:
    """Have every member forget this key; nobody may use it any more."""
    _change("remove", key, agent, output, force=force)


def _change(change: str, key: str, agent: str, output: Output, *, force: bool) -> None:
    text = _key_text(key)
    document = _with_agent(agent, lambda client: client.change_gossip_keys(change, text, force=force))
    _show(document, output)


def _with_agent(agent: str, work: Callable[[AdminClient], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    from shoal.agent.cli.terminal.run import with_admin
    from shoal.client.http.requests import ClientConfig

    return with_admin(agent, work, ClientConfig(attempt_timeout_ms=ANSWER_TIMEOUT_MS))


def _key_text(key: str) -> str:
    """The key, its fingerprint, or what the file holds."""
    if not key.startswith("@"):
        return key.strip()
    try:
        with open(key[1:], encoding="ascii") as file:
            return file.read(KEY_FILE_BYTES_MAX).strip()
    except OSError as error:
        raise CliError(
            f"{key[1:]}: {error.strerror}", "name a file that `shoal keygen` has written"
        ) from error
    except UnicodeDecodeError as error:
        raise CliError(f"{key[1:]} holds no key", "name a file that `shoal keygen` has written") from error


def _of(count: int | None, members: int) -> str:
    """A Serf agent does not tell who uses which key."""
    return "?" if count is None else f"{count}/{members}"


def _show(document: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        show_json(document)
    else:
        members = document["members"]
        rows = [
            (key["fingerprint"], f"{key['held_by']}/{members}", _of(key["used_by"], members))
            for key in document["keys"]
        ]
        show_table(["FINGERPRINT", "HELD BY", "USED BY"], rows)
    for failure in document["failures"]:
        say(f"{failure['name']}: {failure['reason']}")
    if document["away"]:
        say(f"not asked, because they are away: {', '.join(document['away'])}")
