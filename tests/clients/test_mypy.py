"""What `shoal` exports is typed for mypy."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

from tests.clients.checked import PROGRAM, copied, mistakes
from tests.clients.generating import TOOL_SECONDS


def test_mypy_finds_exactly_the_mistakes_of_a_program(tmp_path: pathlib.Path) -> None:
    """Under --strict, with no settings beside it."""
    copied(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )
    said = re.findall(rf"^{PROGRAM}:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert done.stdout.count("error: ") == len(said), done.stdout + done.stderr
    assert {(int(line), code) for line, code in said} == mistakes("mypy"), done.stdout + done.stderr
