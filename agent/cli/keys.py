"""`shoal keygen` and `shoal keys`: gossip keys, made here and rotated by the agents.

Law of this file: it reads keys from arguments and files, and shows fingerprints. The agent decides whether a
step is safe.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    argument,
    example,
    flag,
    group,
    option,
)
from shoal.agent.cli.terminal.output import CliError, UsageError, say, show_json, show_table
from shoal.agent.cli.terminal.run import with_admin

ANSWER_TIMEOUT_MS = 60_000
"""Three queries to a pool of which some members do not answer take so long at most."""

KEY_FILE_BYTES_MAX = 4096

NewKey = Annotated[str, argument("@FILE", "A file that holds it, in base64.")]
KnownKey = Annotated[
    str, argument("FINGERPRINT|@FILE", "As `shoal keys list` shows it, or a file that holds the key.")
]
Force = Annotated[bool, flag("Even if members may be locked out.", "--force")]

app = typer.Typer()
keys = group(
    "keys",
    "The gossip keys of a running cluster: list them, rotate them.",
    "shoal keys list",
    "shoal keys install @new.key",
    "shoal keys use @new.key",
)


@app.command(epilog=example("(umask 077; shoal keygen > gossip.key)", "shoal agent --gossip-key @gossip.key"))
def keygen(
    size: Annotated[int, option("16|24|32", "The key's length: AES-128, 192 or 256.", "--bytes")] = 32,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print a new gossip key, in base64."""
    from shoal.membership.wire.keyring import KEY_BYTES, key_text

    if size not in KEY_BYTES:
        raise UsageError(f"--bytes {size} is no length of a key", "give 16, 24 or 32")
    key = key_text(os.urandom(size))
    if output is Output.JSON:
        show_json({"key": key})
    else:
        print(key)


@keys.command("list", epilog=example("shoal keys list"))
def list_keys(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """List the keys: how many members hold and use each."""
    document = with_admin(agent, lambda client: client.gossip_keys(), ANSWER_TIMEOUT_MS)
    _show(document, output)


@keys.command("install", epilog=example("shoal keys install @new.key"))
def install(key: NewKey, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """Let every member accept this key beside the keys that it has."""
    _change("install", key, agent, output, force=False)


@keys.command("use", epilog=example("shoal keys use @new.key", "shoal keys use 9f86d081884c7d65"))
def use(
    key: KnownKey,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    force: Force = False,
) -> None:
    """Let every member encrypt with this key from now on; all must hold it already."""
    _change("use", key, agent, output, force=force)


@keys.command("remove", epilog=example("shoal keys remove 9f86d081884c7d65"))
def remove(
    key: KnownKey,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    force: Force = False,
) -> None:
    """Let every member forget this key; no member may use it any more."""
    _change("remove", key, agent, output, force=force)


def _change(change: str, key: str, agent: str, output: Output, *, force: bool) -> None:
    text = _key_text(key)
    document = with_admin(
        agent,
        lambda client: client.change_gossip_keys(change, text, force=force),
        ANSWER_TIMEOUT_MS,
    )
    _show(document, output)


def _key_text(key: str) -> str:
    """The fingerprint, or the content of the file. The agent says which ones it knows."""
    if not key.startswith("@"):
        from shoal.membership.wire.keyring import FINGERPRINT_CHARACTERS

        if len(key.strip()) > FINGERPRINT_CHARACTERS:
            raise UsageError(
                "a key in a command line shows in every process list: give @FILE",
                "`(umask 077; shoal keygen > new.key)` makes one",
            )
        return key.strip()
    advice = "name a file that `shoal keygen` has written"
    try:
        with open(key[1:], encoding="ascii") as file:
            return file.read(KEY_FILE_BYTES_MAX).strip()
    except OSError as error:
        raise CliError(f"{key[1:]}: {error.strerror}", advice) from error
    except UnicodeDecodeError as error:
        raise CliError(f"{key[1:]} holds no key", advice) from error


def _show(document: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        show_json(document)
    else:
        members = document["members"]
        rows = [
            (
                key["fingerprint"],
                f"{key['held_by']}/{members}",
                "?"
                if key["used_by"] is None
                else f"{key['used_by']}/{members}",  # Serf's agent does not tell
            )
            for key in document["keys"]
        ]
        show_table(["FINGERPRINT", "HELD BY", "USED BY"], rows)
    for failure in document["failures"]:
        say(f"{failure['name']}: {failure['reason']}")
    if document["away"]:
        say(f"not asked, because they do not answer: {', '.join(document['away'])}")
