"""Where this process's configuration comes from: its flags, its environment, and a file that may change.

Law of this file: it reads the file and says where in it a fault stands. The meaning of a value is decided in
agent/config.py.
"""

from __future__ import annotations

import os
import re
import select
import stat
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.agent.config import SETTINGS, AgentConfig, ConfigError, all_given
from shoal.agent.security.jwt_settings import is_url
from shoal.agent.settings import FILE_SECTION, outside_of_section

FILE_BYTES_MAX = 1 << 20
PIPE_SECONDS_MAX = 30.0
PATHS = ("tls_cert", "tls_key", "tls_ca", "jwt_keys")
"""From a pipe, to its end: a secret's store may be asked for what comes out of it."""


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
        start, prefix = 0, ""
        if key not in outside_of_section(self.settings):
            section = re.search(rf"^[ \t]*\[[ \t]*{FILE_SECTION}[ \t]*\]", self.text, re.MULTILINE)
            start = section.end() if section else 0
            prefix = rf"(?:{FILE_SECTION}[ \t]*\.[ \t]*)?"
        pattern = rf"^[ \t]*{prefix}[\"']?{re.escape(key)}[\"']?[ \t]*="
        found = re.compile(pattern, re.MULTILINE).search(self.text, start)
        return None if found is None else self.text.count("\n", 0, found.start()) + 1

    def place(self, key: str) -> str:
        """FILE, line and key."""
        line = self.line_of(key)
        return f"{self.path}, {'' if line is None else f'line {line}, '}key {key}"


def read_file(path: str) -> ConfigFile:
    """Raises ConfigFileError, which names file, line and key."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            content = _from_pipe(path)
        else:
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
        return ConfigFile(path, text, _from_its_place(tomllib.loads(text), os.path.dirname(path)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(f"{_place_in(path, text, str(error))} is not TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # tomllib's own limits, without a place
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ConfigFileError(f"{path} is not TOML: {reason}") from None


def _from_its_place(settings: dict[str, Any], directory: str) -> dict[str, Any]:
    """The same with the paths of keys and certificates counted from the file's directory: the directory can
    be copied to any place."""
    section = settings.get(FILE_SECTION, settings)
    if not isinstance(section, dict):
        return settings
    for key, value in section.items():
        name = key.replace("-", "_")
        if isinstance(value, str) and value and name in PATHS and not is_url(value):
            section[key] = os.path.join(directory, value)
        elif isinstance(value, str) and value[1:] and value[0] == "@" and name == "gossip_key":
            section[key] = f"@{os.path.join(directory, value[1:])}"
    return settings


def _from_pipe(path: str) -> bytes:
    """To its end, or somewhat more than a configuration may have. Raises OSError, ConfigFileError."""
    content = bytearray()
    end_s = time.monotonic() + PIPE_SECONDS_MAX
    news = select.poll()
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else it would wait for a writer
    try:
        news.register(pipe, select.POLLIN)
        while len(content) <= FILE_BYTES_MAX:
            if not news.poll(max(0.0, end_s - time.monotonic()) * 1_000):
                raise ConfigFileError(
                    f"{path} is a pipe that nobody wrote to the end within {PIPE_SECONDS_MAX:g} s: name a"
                    " file, or start its writer first"
                )
            piece = os.read(pipe, FILE_BYTES_MAX)
            if not piece:
                break
            content += piece
    finally:
        os.close(pipe)
    return bytes(content)


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

    @property
    def can_change(self) -> bool:
        """Whether there is a file. A pipe says what it says once, and may keep its reader waiting."""
        is_other = os.path.exists(self.path) and not (os.path.isfile(self.path) or os.path.isdir(self.path))
        return bool(self.path) and not is_other

    def read(self) -> AgentConfig:
        """Again, while an agent runs. Blocking. Raises ConfigError; a fault of the file with file, line and
        key."""
        if self.path and not self.can_change:
            raise ConfigFileError(f"{self.path} is no regular file, and no other can be read again")
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
        return outside_of_section(file.settings) or [
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
