"""How commands are declared: the options and arguments that several commands share, groups and examples.

Law of this file: it knows typer and words. The commands decide what an option means.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

DEFAULT_AGENT = "http://127.0.0.1:7070"


class Output(StrEnum):
    """How a document is shown."""

    TABLE = "table"
    JSON = "json"


def option(metavar: str, text: str, *names: str, **further: Any) -> Any:
    """An option with a value: how the help calls the value, and the help's line."""
    return typer.Option(*names, metavar=metavar, help=text, **further)


def flag(text: str, *names: str) -> Any:
    """An option without a value."""
    return typer.Option(*names, help=text)


def argument(
    metavar: str, text: str, complete: Callable[[Any, str], list[str]] | None = None, **further: Any
) -> Any:
    """An argument; `complete` gives the shell the values that begin so."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete, **further)


def group(name: str, text: str, *examples: str) -> typer.Typer:
    """A command that only has commands below it."""
    return typer.Typer(
        name=name, help=text, epilog=example(*examples), no_args_is_help=True, rich_markup_mode=None
    )


def example(*lines: str) -> str:
    """The epilog of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


AgentOption = Annotated[
    str,
    option("URL[,URL]", "An agent's URL, or several: any may be down.", "--agent", envvar="SHOAL_AGENT"),
]
OutputOption = Annotated[Output, flag("A table for people, or JSON for programs.", "--output", "-o")]
PartitionOption = Annotated[int | None, option("P", "Only this partition.", "--partition", "-p", min=0)]
YesOption = Annotated[bool, flag("Do not ask.", "--yes", "-y")]
