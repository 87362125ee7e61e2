"""TypeScript's generator and compiler, and pyright: from npm, into `.environment/` alone.

Tests use them; once installed they need no network.

Law of this file: standard library only. A machine without Node runs all other tests: then it says why these
did not run, and never fails for it. ARCHITECTURE.md says why these packages.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

import environment

# Why there are none, for the tests, which say it at the end of their run.
REASON_VARIABLE = "SHOAL_NODE_MISSING"
PACKAGES = {"openapi-typescript": "7.13.0", "pyright": "1.1.414", "typescript": "5.9.3"}
DIRECTORY = environment.DIRECTORY / "node"
STAMP = "shoal.stamp"
# 85 MB in some 30 packages: ten seconds where the network is near.
INSTALL_TIMEOUT_SECONDS = 180


class NodeProblem(Exception):
    """There is nothing of Node to test with: one line that says why."""


def are_ready() -> bool:
    """Whether exactly these packages are installed."""
    stamp = DIRECTORY / STAMP
    return stamp.exists() and stamp.read_text() == json.dumps(PACKAGES)


def command(name: str) -> str:
    """The path of a command that the packages brought."""
    return str(DIRECTORY / "node_modules" / ".bin" / name)


def ensure() -> None:
    """Installs them, if need be. Raises NodeProblem."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise NodeProblem(f"no `{tool}` on PATH")
    if are_ready():
        return
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    (DIRECTORY / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
    _install(DIRECTORY)
    (DIRECTORY / STAMP).write_text(json.dumps(PACKAGES))


def _install(directory: pathlib.Path) -> None:
    try:
        done = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeProblem(f"npm install failed: {error}") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NodeProblem(f"npm install failed ({lines[0] if lines else 'no message'}): is there a network?")
