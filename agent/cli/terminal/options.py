"""How commands are declared: the options and arguments that several commands share, groups and examples.

Law of this file: it knows typer and words. The commands decide what an option means.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

DEFAULT_AGENT = "http://127.0.0.1:7070"
JSON = "json"


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
    """An argument; `complete` gives the shell the values that begin so, which are names. No name is empty:
    behind it would be the address of the list of all."""
    if complete is not None:
        further["callback"] = name_of
    if further.get("callback") is name_of:
        further["callback"] = filled_name_of
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete, **further)


def name_of(value: Any) -> Any:
    """The callback of names, one or several: UTF-8, since a URL would drop other bytes. Raises
    BadParameter."""
    for name in value if isinstance(value, list) else [value or ""]:
        if any("\udc80" <= character <= "\udcff" for character in name):
            raise typer.BadParameter(f"{os.fsencode(name)!r} is not UTF-8")
    return value


def filled_name_of(value: Any) -> Any:
    """The same, and none of them is empty."""
    if value == "" or (isinstance(value, list) and "" in value):
        raise typer.BadParameter("a name is empty")
    return name_of(value)


# Typer reads these once for each parameter with the callback: as texts they are compiled each time.
name_of.__annotations__ = filled_name_of.__annotations__ = {"value": Any, "return": Any}


def group(name: str, text: str, *examples: str) -> typer.Typer:
    """A command that only has commands below it."""
    return typer.Typer(
        name=name, help=text, epilog=example(*examples), no_args_is_help=True, rich_markup_mode=None
    )


def example(*lines: str) -> str:
    """The epilog of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def with_json(app: typer.Typer) -> typer.Typer:
    """The same, with an option --json beside each --output that knows JSON."""
    for known in app.registered_commands:
        command = known.callback
        assert command is not None
        if "output" not in command.__annotations__:
            continue
        output = inspect.signature(command).parameters.get("output")
        default = None if output is None else output.default
        choices = {one.value: one for one in type(default)} if isinstance(default, StrEnum) else {}
        if JSON in choices:
            known.callback = _taking_json(command, choices[JSON])
    return app


def _taking_json(command: Callable[..., Any], value: StrEnum) -> Callable[..., Any]:
    """The command with one more parameter, as typer reads it."""
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    place = [one.name for one in parameters].index("output") + 1
    parameters.insert(
        place, inspect.Parameter("as_json", parameters[place - 1].kind, default=False, annotation=JsonFlag)
    )

    def taking(*, as_json: bool, **given: Any) -> Any:
        return command(**given | ({"output": value} if as_json else {}))

    taking.__name__, taking.__doc__ = command.__name__, command.__doc__
    taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {one.name: one.annotation for one in parameters}
    return taking


JsonFlag = Annotated[bool, flag("As --output json.", "--json")]
AgentOption = Annotated[
    str,
    option(
        "URL[,URL]",
        "An agent's URL, or several: any may be down.",
        "--agent",
        envvar="SHOAL_AGENT",
        callback=name_of,
    ),
]
OutputOption = Annotated[Output, flag("A table for people, or JSON for programs.", "--output", "-o")]
PartitionOption = Annotated[int | None, option("P", "Only this partition.", "--partition", "-p", min=0)]
YesOption = Annotated[bool, flag("Do not ask.", "--yes", "-y")]
