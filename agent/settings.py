"""A setting: its name in each source, how it is read, when a changed value counts, if it is secret.

Law of this file: pure. It knows no setting by name; agent/config.py declares them as fields of dataclasses. A
field whose default_factory is a dataclass is a group: its fields are settings like those beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, NamedTuple, cast

from shoal.errors import ShoalError
from shoal.format.timestamps import format_duration, parse_duration_ms

FILE_SECTION = "agent"  # a file may hold the settings at its top or under [agent]
EFFECT = "effect"
SECRET = "secret"  # noqa: S105 -- the name of a mark
DERIVED = "derived"


class ConfigError(ValueError):
    """A configuration that cannot work. The text is one line: what is wrong and what to do."""


class Effect(StrEnum):
    """When a changed value counts."""

    RELOAD = "reload"
    """At SIGHUP, and at each start."""
    START = "each start"
    FIRST_START = "first start"
    """The data directory keeps the first value."""
    FOUNDING = "founding"
    """Only while a new cluster forms."""


def setting(default: Any, *, effect: Effect = Effect.START, secret: bool = False) -> Any:
    """A field with marks. A plain default does where a value counts from the next start and is no secret."""
    return field(default=default, repr=not secret, metadata={EFFECT: effect, SECRET: secret})


def derived(default: Any) -> Any:
    """A field that no source gives."""
    return field(default=default, metadata={DERIVED: True})


@dataclass(frozen=True, slots=True)
class Setting:
    """`path`: the fields that lead to the value. A duration is called without its unit, which is given with
    the value. `read` raises ValueError. `default` is MISSING where a value is required."""

    name: str
    path: tuple[str, ...]
    read: Callable[[Any], Any]
    default: Any
    effect: Effect
    is_secret: bool

    @property
    def flag(self) -> str:
        """As a command line would have it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """As the environment has it."""
        return f"SHOAL_{self.name.upper()}"

    def of(self, config: Any) -> Any:
        """The value in a configuration."""
        for name in self.path:
            config = getattr(config, name)
        return config

    def with_unit(self, value: Any) -> Any:
        """The value as a source may give it: a duration has its unit."""
        return format_duration(value) if self.path[-1].endswith("_ms") else value


def settings_of(kind: type[Any], path: tuple[str, ...] = ()) -> dict[str, Setting]:
    """The settings that a dataclass declares, groups and all, in the order of its fields."""
    found: dict[str, Setting] = {}
    for item in fields(kind):
        kind_of_group: Any = item.default_factory
        if is_dataclass(kind_of_group):
            found |= settings_of(cast("type[Any]", kind_of_group), (*path, item.name))
        elif not item.metadata.get(DERIVED):
            made = _setting_of(item, (*path, item.name))
            found[made.name] = made
    return found


def _setting_of(item: Field[Any], path: tuple[str, ...]) -> Setting:
    is_duration = item.name.endswith("_ms")
    return Setting(
        name=item.name.removesuffix("_ms"),
        path=path,
        read=_duration_ms if is_duration else _BY_TYPE[str(item.type).removesuffix(" | None")],
        default=item.default,
        effect=item.metadata.get(EFFECT, Effect.START),
        is_secret=item.metadata.get(SECRET, False),
    )


def build(kind: type[Any], settings: Mapping[str, Setting], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a dataclass, from {setting: its value}. The others keep their defaults."""
    arguments: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        path = settings[name].path
        place = arguments if len(path) == 1 else groups.setdefault(path[0], {})
        place[path[-1]] = value
    kinds = {item.name: item.default_factory for item in fields(kind) if item.default_factory is not MISSING}
    return arguments | {name: kinds[name](**values) for name, values in groups.items()}


# ---- the sources ---------------------------------------------------------------------------------


class Origin(StrEnum):
    """Where a value comes from, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Given(NamedTuple):
    """A setting, its value as it was given, and where: `place` is a flag, a variable or a key."""

    name: str
    value: Any
    origin: Origin
    place: str


def read(given: Given, settings: Mapping[str, Setting]) -> Any:
    """The value that counts. Raises ConfigError, which names the place and shows no secret."""
    known = settings[given.name]
    try:
        return known.read(given.value)
    except ValueError as error:
        shown = "(not shown)" if known.is_secret else repr(given.value)
        place = f"`{given.place}` in the file" if given.origin is Origin.FILE else given.place
        raise ConfigError(f"{place} = {shown}: {error}") from None


def in_flags(flags: Mapping[str, Any], settings: Mapping[str, Setting]) -> Iterator[Given]:
    """A flag of None, or an empty list, was not given."""
    given = {name.removesuffix("_ms"): value for name, value in flags.items() if value not in (None, (), [])}
    unknown = sorted(set(given) - set(settings))
    if unknown:
        raise ConfigError(f"unknown setting: {', '.join(unknown)}")
    for name, value in given.items():
        yield Given(name, value, Origin.FLAG, settings[name].flag)


def in_environment(environment: Mapping[str, str], settings: Mapping[str, Setting]) -> Iterator[Given]:
    """SHOAL_NAME=value for every setting. Unknown SHOAL_ names are left to other commands."""
    for name, known in settings.items():
        if environment.get(known.variable):
            yield Given(name, environment[known.variable], Origin.ENVIRONMENT, known.variable)


def in_file(file: Mapping[str, Any], settings: Mapping[str, Setting]) -> Iterator[Given]:
    """The parsed TOML. Tables beside the section are other programs'."""
    section = file.get(FILE_SECTION, file)
    if not isinstance(section, Mapping):
        raise ConfigError(f"the file's [{FILE_SECTION}] is not a table")
    for raw_name in outside_of_section(file):
        raise ConfigError(
            f"the file sets {raw_name!r} outside of [{FILE_SECTION}], where it would not count: move it below"
            " that line"
        )
    spellings: dict[str, str] = {}
    for raw_name, value in section.items():
        name = raw_name.replace("-", "_")
        if name not in settings:
            raise ConfigError(
                f"the file sets {raw_name!r}, which is no setting: one of {', '.join(sorted(settings))}"
            )
        other = spellings.setdefault(name, raw_name)
        if other != raw_name:
            raise ConfigError(f"the file sets {other!r} and {raw_name!r}, one setting: keep one of them")
        yield Given(name, value, Origin.FILE, raw_name)


def outside_of_section(file: Mapping[str, Any]) -> list[str]:
    """Keys beside the section of settings, in a file that has one."""
    return [name for name, value in file.items() if FILE_SECTION in file and not isinstance(value, Mapping)]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text is needed")
    return value.strip()


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("a whole number is needed")
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number is needed") from None


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("true or false is needed")


def _list(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part for part in re.split(r"[,\s]+", value) if part)
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise ValueError("a list of texts is needed")


def _duration_ms(value: Any) -> int:
    """Milliseconds: a whole number, or text with a unit (`500ms`, `3s`, `2m`, `1h`, `1d`)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return parse_duration_ms(_text(value))
    except (ShoalError, ValueError):
        raise ValueError("a duration such as 500ms, 3s, 2m or 1h is needed") from None


_BY_TYPE = {"str": _text, "int": _integer, "bool": _boolean, "tuple[str, ...]": _list}
