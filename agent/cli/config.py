"""`shoal config show`: the configuration that an agent would start with, and where each value comes from.

Law of this file: it merges the same sources by the same rules as `shoal agent`, starts nothing, and shows no
secret.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.agent.cli.agent import agent, configuration, source_of
from shoal.agent.cli.terminal.options import Output, OutputOption, example, group
from shoal.agent.cli.terminal.output import show_json, show_table

if TYPE_CHECKING:
    from shoal.agent.process.config_source import ConfigSource

NOT_SHOWN = "(set, not shown)"
NO_SETTINGS = frozenset(("check",))
"""Flags of `shoal agent` that say what to do."""

configs = group("config", "The configuration of an agent: what counts, and why.", "shoal config show")


class Shown(NamedTuple):
    """One setting. `place`: the flag, the variable, or the file with line and key."""

    setting: str
    value: Any
    origin: str
    place: str
    effect: str


def shown_settings(source: ConfigSource) -> list[Shown]:
    """Every setting. Raises UsageError for what `shoal agent` would not take."""
    from shoal.agent.config import SETTINGS, all_given
    from shoal.agent.settings import Origin

    config, file = configuration(source)
    given = {one.name: one for one in all_given(source.flags, source.environment, file.settings)}
    rows = []
    for name, known in SETTINGS.items():
        value = known.of(config)
        origin, place = Origin.DEFAULT, ""
        if name in given:
            origin, place = given[name].origin, given[name].place
        if origin is Origin.FILE:
            place = file.place(place)
        if isinstance(value, tuple):
            value = list(value)
        if known.is_secret and value is not None:
            value = NOT_SHOWN
        rows.append(Shown(name, known.with_unit(value), str(origin), place, str(known.effect)))
    return rows


def show(output: OutputOption = Output.TABLE, **given: Any) -> None:
    """Show each setting, its value, and where it comes from.

    Takes the flags of `shoal agent`, SHOAL_* variables and --config: it shows what an agent would start with.
    """
    path = given.pop("config")
    rows = shown_settings(source_of(given, path))
    if output is Output.JSON:
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
    settings = [one for one in flags.parameters.values() if one.name not in NO_SETTINGS]
    parameters = [*settings, *kept]

    def command(**given: Any) -> None:
        show(**given)

    command.__name__, command.__doc__ = show.__name__, show.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


configs.command(
    "show", epilog=example("shoal config show --config /etc/shoal.toml", "shoal config show --data d --json")
)(_with_flags_of_agent())
