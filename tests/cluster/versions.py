"""Versions of Shoal that run side by side: an unpacked commit, and this code with feature levels of a choice.

Law of this file: it says how a version is started, and proves that nothing else is started in its place. All
run in this environment's interpreter, in which this code is installed too.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LEVELLED = HERE / "agent_of_levels.py"
COMMAND_SECONDS_MAX = 120.0
QUESTION = """
import json, os, shoal, shoal.agent
try:
    from shoal.agent.levels import SUPPORTED
except ImportError:
    SUPPORTED = (1, 1)
files = [os.path.realpath(module.__file__) for module in (shoal, shoal.agent)]
print(json.dumps({"files": files, "levels": list(SUPPORTED)}))
"""
"""Code of before levels understands level 1. -P keeps the working directory, which may hold other code, off
the path."""


class VersionProblem(Exception):
    """What would be started is not what was asked for. One line."""


@dataclass(frozen=True)
class Version:
    """`program` stands before the subcommand of `shoal`. `levels`: the lowest and highest that it knows.
    `checkout`: where its Python files lie."""

    name: str
    program: tuple[str, ...]
    variables: Mapping[str, str]
    levels: tuple[int, int]
    checkout: pathlib.Path

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """One command of this version that ends by itself. Raises TimeoutExpired."""
        return subprocess.run(
            [*self.program, *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **self.variables, **variables},
        )

    @property
    def words(self) -> str:
        """As errors and documents name its levels."""
        lowest, highest = self.levels
        return str(lowest) if lowest == highest else f"{lowest} to {highest}"


def version_of(name: str, checkout: pathlib.Path) -> Version:
    """The code below `checkout`. Raises VersionProblem where the interpreter would import other code."""
    variables = {"PYTHONPATH": str(checkout)}
    said = Version(name, (sys.executable, "-P"), variables, (1, 1), checkout).run("-c", QUESTION)
    if said.returncode:
        raise VersionProblem(f"{name} does not run here: {' '.join(said.stderr.split()[-40:])}")
    answer = json.loads(said.stdout)
    root = os.path.realpath(checkout)
    for file in answer["files"]:
        if os.path.commonpath([root, file]) != root:
            raise VersionProblem(f"{name}: {file} would run instead of the code in {root}")
    lowest, highest = answer["levels"]
    program = (sys.executable, "-P", "-m", "shoal.agent")
    return Version(name, program, variables, (lowest, highest), checkout)


def version_of_levels(lowest: int, highest: int) -> Version:
    """This code as an agent that understands these levels; agent_of_levels.py says what a level adds that is
    not in this code's list."""
    program = (sys.executable, str(LEVELLED), f"{lowest}-{highest}")
    return Version(
        f"levels {lowest} to {highest}", program, {"PYTHONPATH": str(ROOT)}, (lowest, highest), ROOT
    )


def own_levels() -> tuple[int, int]:
    """Those of this code."""
    from shoal.agent.levels import SUPPORTED

    return SUPPORTED.lowest, SUPPORTED.highest
