"""The event loop's shorter way on each CPython that is supported: it looks at private parts of asyncio.

The file imports the standard library alone, so that an interpreter without our packages can run it.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.agent.process.interpreters import FOUND, VERSIONS

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(__file__).parent / "loop_program.py"
PROGRAM_SECONDS = 60


@pytest.mark.parametrize("version", FOUND, ids=lambda version: ".".join(map(str, version)))
def test_the_shorter_way_is_taken_and_does_what_asyncio_does(version: tuple[int, int]) -> None:
    """A reader alone is called in `select`, timers and threads have their turn, and a server serves."""
    done = subprocess.run(
        [FOUND[version], "-I", "-W", "error", str(PROGRAM), str(ROOT / "agent/process/event_loop.py")],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{version[0]}.{version[1]} direct\n"), done.stderr


def test_every_version_that_can_be_installed_is_tried() -> None:
    """From the oldest in setup.cfg to this one."""
    oldest = ".".join(map(str, VERSIONS[0]))
    assert f"python_requires = >={oldest}\n" in (ROOT / "setup.cfg").read_text()
    assert sys.version_info[:2] in FOUND
