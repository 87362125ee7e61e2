"""`shoal config show`: the configuration that an agent would start with, and where each value comes from.

Law of this file: it merges the same sources by the same rules as `shoal agent`, starts nothing, and shows no
secret.
"""

from __future__ import annotations

import inspect
import os
import re
from typing import Annotated, Any, NamedTuple

from shoal.agent.cli.agent import agent, configuration, read_file
from shoal.agent.cli.terminal.options import Output, OutputOption, example, flag, group
from shoal.agent.cli.terminal.output import show_json, show_table

NOT_SHOWN = "(set, not shown)"

configs = group("config", "The configuration of an agent: what counts, and why.", "shoal config show")


class Shown(NamedTuple):
    """One setting. `place`: the flag, the variable, or the file with line and key."""

    setting: str
    value: Any
    origin: str
    place: str
    effect: str


def shown_settings(flags: dict[str, Any], environment: dict[str, str], path: str | None) -> list[Shown]:
    """Every setting. Raises CliError for what `shoal agent` would not take."""
    from shoal.agent.config import SETTINGS, all_given
    from shoal.agent.settings import Origin

    file = read_file(path)
    config = configuration(flags, environment, file)
    given = {one.name: one for one in all_given(flags, environment, file)}
    rows = []
    for name, known in SETTINGS.items():
        value = known.of(config)
        origin, place = Origin.DEFAULT, ""
        if name in given:
            origin, place = given[name].origin, given[name].place
        if origin is Origin.FILE:
            place = f"{path}{_line_of(place, path)}: {place}"
        if isinstance(value, tuple):
            value = list(value)
        if known.is_secret and value is not None:
            value = NOT_SHOWN
        elif value is not None and known.path[-1].endswith("_ms"):
            value = f"{value}ms"
        rows.append(Shown(name, value, str(origin), place, str(known.effect)))
    return rows


def _line_of(key: str, path: str | None) -> str:
    """`:LINE` of a key, where the file has it at the beginning of one line only."""
    assert path is not None
    with open(path, encoding="utf-8") as file:
        found = [
            number
            for number, line in enumerate(file, 1)
            if re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", line)
        ]
    return f":{found[0]}" if len(found) == 1 else ""


JsonFlag = Annotated[bool, flag("As --output json.", "--json")]


def show(output: OutputOption = Output.TABLE, as_json: JsonFlag = False, **given: Any) -> None:
    """Show each setting, its value, and where it comes from.

    Takes the flags of `shoal agent`, SHOAL_* variables and --config: it shows what an agent would start with.
    """
    path = given.pop("config") or os.environ.get("SHOAL_CONFIG") or None
    rows = shown_settings(given, dict(os.environ), path)
    if as_json or output is Output.JSON:
        show_json({"settings": [row._asdict() for row in rows]})
        return
    cells = [[row.setting, _cell(row.value), row.place or row.origin, row.effect] for row in rows]
    show_table(["SETTING", "VALUE", "FROM", "TAKES EFFECT"], cells)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(value) or "-"
    return "-" if value is None else str(value)


def _with_flags_of_agent() -> Any:
    """`show` with the parameters of `shoal agent` behind its own, as typer reads them."""
    own, flags = inspect.signature(show, eval_str=True), inspect.signature(agent, eval_str=True)
    kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*flags.parameters.values(), *kept]

    def command(**given: Any) -> None:
        show(**given)

    command.__doc__ = show.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


configs.command(
    "show", epilog=example("shoal config show --config /etc/shoal.toml", "shoal config show --data d --json")
)(_with_flags_of_agent())
