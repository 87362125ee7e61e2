"""Where this process's configuration comes from: its flags, its environment, and a file that may change.

Law of this file: it reads the file and says where in it a fault stands. The meaning of a value is decided in
agent/config.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.agent.config import SETTINGS, AgentConfig, ConfigError, all_given
from shoal.agent.settings import FILE_SECTION

FILE_BYTES_MAX = 1 << 20


class ConfigFileError(ConfigError):
    """The file cannot be read, or is not TOML."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """As it was when it was read. Without a path: none is used."""

    path: str = ""
    text: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def line_of(self, key: str) -> int | None:
        """Where the key is set, counted from 1."""
        section = re.search(rf"^[ \t]*\[[ \t]*{FILE_SECTION}[ \t]*\]", self.text, re.MULTILINE)
        pattern = rf"^[ \t]*(?:{FILE_SECTION}[ \t]*\.[ \t]*)?[\"']?{re.escape(key)}[\"']?[ \t]*="
        found = re.compile(pattern, re.MULTILINE).search(self.text, section.end() if section else 0)
        return None if found is None else self.text.count("\n", 0, found.start()) + 1

    def place(self, key: str) -> str:
        """FILE, line and key."""
        line = self.line_of(key)
        return f"{self.path}, {'' if line is None else f'line {line}, '}key {key}"


def read_file(path: str) -> ConfigFile:
    """Raises ConfigFileError, which names file, line and key."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigFileError(f"{path}: {error.strerror}: name a readable TOML file") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigFileError(f"{path} has more than {FILE_BYTES_MAX} bytes: it is no configuration")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is not UTF-8 at byte {error.start}: mend the file") from None
    try:
        return ConfigFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(f"{_place_in(path, text, str(error))} is not TOML: {error}") from None


def _place_in(path: str, text: str, said: str) -> str:
    found = re.search(r"\(at line (\d+)", said)
    lines = text.splitlines()
    number = int(found[1]) if found is not None else len(lines)
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    key = re.match(r"\s*([\w.\"'-]+)\s*=?", line)
    return f"{path}, line {number}" + ("" if key is None else f", key {key[1]}")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Flags and environment stay as they are while the process lives. `path`: of the file, "" for none."""

    flags: Mapping[str, Any]
    environment: Mapping[str, str]
    path: str

    def read(self) -> AgentConfig:
        """Blocking. Raises ConfigError; a fault of the file with file, line and key."""
        return self.settle(self.file())

    def file(self) -> ConfigFile:
        """As it is now. Blocking. Raises ConfigFileError."""
        return read_file(self.path) if self.path else ConfigFile()

    def settle(self, file: ConfigFile) -> AgentConfig:
        """The configuration with this file. Raises ConfigError as read() does."""
        try:
            return AgentConfig.from_sources(self.flags, self.environment, file.settings)
        except ConfigError as error:
            keys = [key for key in self._keys_that_count(file) if _is_about(str(error), key)]
            if not keys:
                raise
            raise ConfigError(f"{'; '.join(map(file.place, keys))}: {error}") from None

    def is_fixed(self, setting: str) -> str | None:
        """The flag or variable that decides, whatever the file says; None where the file may."""
        stronger = {}
        for given in all_given(self.flags, self.environment, {}):
            stronger[given.name] = given.place
        return stronger.get(setting)

    def _keys_that_count(self, file: ConfigFile) -> list[str]:
        section = file.settings.get(FILE_SECTION, file.settings)
        if not isinstance(section, Mapping):
            return [FILE_SECTION]
        return [
            key
            for key in section
            if (name := key.replace("-", "_")) not in SETTINGS or self.is_fixed(name) is None
        ]


def _is_about(text: str, key: str) -> bool:
    """Whether an error is about this key: it begins with it, or names it as a flag or in quotes. Other
    mentions are words of advice."""
    spellings = {key, key.replace("-", "_"), key.replace("_", "-")}
    return any(
        re.search(rf"(?:^|--){word}(?![\w-])|[`'\[]{word}[`'\]]", text) is not None
        for word in map(re.escape, spellings)
    )
