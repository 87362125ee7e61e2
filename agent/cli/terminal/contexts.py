"""The user's configuration file with contexts: clusters by name, each with agents and credentials.

Law of this file: it reads and writes the file and knows neither commands nor agents. Only its owner may read
it once it holds a token. A file that cannot be understood is an error, never an empty one.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from shoal.agent.cli.terminal.output import CliError, UsageError

CONTEXT_VARIABLE: Final = "SHOAL_CONTEXT"
FILE_BYTES_MAX: Final = 1 << 20
CONTEXTS_MAX: Final = 1_000
VALUE_CHARACTERS_MAX: Final = 8_192
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """A cluster as one user reaches it. `token`: the token, or `@` and an absolute path."""

    agent: str = ""
    token: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""


MEMBERS: Final = tuple(one.name for one in fields(KnownCluster))


@dataclass(frozen=True, slots=True)
class KnownClusters:
    """The file. `current`: the name of the one in use, empty if none is."""

    current: str = ""
    known: Mapping[str, KnownCluster] = field(default_factory=dict)

    def named(self, name: str) -> KnownCluster:
        """Raises CliError."""
        if name not in self.known:
            listed = ", ".join(sorted(self.known)) or "none is set"
            raise CliError(f"there is no context {name!r} (known: {listed})", "`shoal context set` makes one")
        return self.known[name]


def config_path(environment: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/shoal/config.toml, below ~/.config unless that is an absolute path."""
    home = environment.get("XDG_CONFIG_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~"), ".config")
    return base / "shoal" / "config.toml"


def check_name(name: str) -> str:
    """Raises UsageError for a name that no context can have."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name[:80]!r} is no name of a context", "use 1 to 64 letters, digits, - and _")
    return name


def read_contexts(path: Path) -> KnownClusters:
    """Those of the file; none where there is no file. Raises CliError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return KnownClusters()
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise CliError(f"{path} has more than {FILE_BYTES_MAX} bytes: it is no file of contexts")
    try:
        found = _contexts(tomllib.loads(content.decode()))
    except (ValueError, RecursionError) as error:  # the error quotes no line of the file
        said = str(error) if isinstance(error, _NotContextsError) else "it is not TOML"
        raise CliError(f"{path}: {said}", "mend the file, or remove it and set contexts anew") from None
    has_token = any(one.token and not one.token.startswith("@") for one in found.known.values())
    if has_token and os.name == "posix" and mode & 0o077:
        raise CliError(f"{path} holds a token, and others may read it", f"`chmod 600 {path}`")
    return found


class _NotContextsError(ValueError):
    """TOML that says something else."""


def _contexts(document: Mapping[str, Any]) -> KnownClusters:
    current, listed = document.get("current", ""), document.get("contexts", {})
    if (
        not isinstance(current, str)
        or not isinstance(listed, dict)
        or document.keys() - {"current", "contexts"}
    ):
        raise _NotContextsError("it has `current` and [contexts.NAME], and nothing else")
    if len(listed) > CONTEXTS_MAX:
        raise _NotContextsError(f"it has more than {CONTEXTS_MAX} contexts")
    known = {}
    for name, values in listed.items():
        is_known = _NAME.fullmatch(name) is not None and isinstance(values, dict)
        if not is_known or not all(one in MEMBERS and isinstance(values[one], str) for one in values):
            raise _NotContextsError(f"context {name[:80]!r}: it has {', '.join(MEMBERS)}, each a text")
        known[name] = KnownCluster(**values)
    return KnownClusters(current, known)


def write_contexts(path: Path, contexts: KnownClusters) -> None:
    """Replace the file in one step; only its owner may read it. Raises CliError."""
    lines = [f"current = {_quoted(contexts.current)}"]
    for name, one in sorted(contexts.known.items()):
        given = [(member, getattr(one, member)) for member in MEMBERS]
        lines += ["", f"[contexts.{name}]"]
        lines += [f"{member} = {_quoted(value)}" for member, value in given if value]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(prefix=".config-", dir=path.parent)  # its mode is 600
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
                file.flush()
                os.fsync(file.fileno())  # or a crash may leave an empty file in the place of the old one
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}") from None


def _quoted(text: str) -> str:
    """A TOML string: JSON's, but for a character that it does not escape. Raises UsageError."""
    if len(text) > VALUE_CHARACTERS_MAX or not text.isprintable():
        raise UsageError(f"a value of a context has at most {VALUE_CHARACTERS_MAX} printable characters")
    return json.dumps(text, ensure_ascii=False)
