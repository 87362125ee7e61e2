"""Makes the faults of rules.py one after the other and sees whether their tests notice.

    python -m tests.safety.run            all of them, some minutes; exit status 1 if one is not noticed
    python -m tests.safety.run 8 9 11     those of some rules

Law of this file: each fault is made in a copy of the tree, in a folder of its own that goes away again; the
tree itself is never written to. A test counts as failed only if it ran: a copy that cannot even be imported
shows nothing.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from tests.safety.rules import FAULTS, Fault

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = (
    "agent",
    "membership",
    "replication",
    "segment_store",
    "shoal",
    "scripts",
    "tests",
    "docs",
    "lab",
    "setup.cfg",
    "pyproject.toml",
)
TIMEOUT_SECONDS = 180.0
"""Of the tests of one fault, far more than they need: a machine too busy to end them shows nothing."""
FAILED = re.compile(r"(\d+) failed")


class SafetyError(Exception):
    """The fault cannot be made: the text says why."""


def copy_tree(target: pathlib.Path) -> None:
    """What tests and product need, links as links."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source, target / name)


def make(fault: Fault, tree: pathlib.Path) -> str:
    """The file's text as it was. Raises SafetyError when the place is not there exactly once."""
    path = tree / fault.path
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise SafetyError(f"{fault.path} has {text.count(fault.old)} places like {fault.old!r}")
    path.write_text(text.replace(fault.old, fault.new))
    return text


def run_tests(tests: tuple[str, ...], tree: pathlib.Path) -> tuple[int, str]:
    """How many failed, and pytest's last words; -1 when none could run."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    variables = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command,
            cwd=tree,
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end within {TIMEOUT_SECONDS:.0f} s"
    words = ran.stdout.strip().splitlines()[-1:] or [ran.stderr.strip()[-200:]]
    found = FAILED.search(words[0])
    if ran.returncode == 1 and found:
        return int(found[1]), words[0]
    return (0 if ran.returncode == 0 else -1), words[0]


def check(fault: Fault, tree: pathlib.Path) -> str:
    """Empty when a test noticed; else what is wrong."""
    try:
        before = make(fault, tree)
    except SafetyError as error:
        return str(error)
    try:
        failed, words = run_tests(fault.tests, tree)
    finally:
        (tree / fault.path).write_text(before)
    if failed > 0:
        return ""
    return f"NOT NOTICED: {words}" if failed == 0 else f"the tests could not run: {words}"


def main(arguments: list[str]) -> int:
    """One line for each fault."""
    wanted = {int(number) for number in arguments} or {fault.rule for fault in FAULTS}
    bad = 0
    with tempfile.TemporaryDirectory(prefix="shoal-safety-") as directory:
        tree = pathlib.Path(directory)
        copy_tree(tree)
        for fault in (fault for fault in FAULTS if fault.rule in wanted):
            began = time.monotonic()
            problem = check(fault, tree)
            bad += bool(problem)
            seconds = time.monotonic() - began
            print(f"{fault.rule:2} {seconds:5.1f} s  {fault.what}: {problem or 'noticed'}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
