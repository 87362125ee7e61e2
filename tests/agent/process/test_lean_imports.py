"""An agent or another command beside pandas costs what it costs without."""

from __future__ import annotations

import subprocess
import sys

STARTED = """
import asyncio, sys
from shoal.agent.cli import agent as agent_commands
asyncio.Runner.run = lambda runner, main: main.close()
agent_commands._run(agent_commands.configuration(agent_commands.source_of({"data": "d"}, None))[0])
import pyarrow as pa
assert pa.array([b"x"]).to_pylist() == [b"x"] and pa.scalar(1).as_py() == 1
print(sorted({"numpy", "pandas"} & set(sys.modules)))
try:
    import pandas
except ModuleNotFoundError as error:
    print(error)
"""
COMMAND = """
import sys
from shoal.agent.cli import main
main.main = lambda: 7
try:
    main.run()
except SystemExit as ended:
    print(ended.code)
import pyarrow as pa
assert pa.array([b"x"]).to_pylist() == [b"x"]
print(sorted({"numpy", "pandas"} & set(sys.modules)))
"""
LATE = """
import sys
import numpy
from shoal.agent.process.footprint import import_no_frames
print(import_no_frames())
import pandas
print(pandas.DataFrame({"a": [1]}).a.sum())
"""


def said(program: str) -> list[str]:
    """What a fresh interpreter prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_an_agent_imports_neither_numpy_nor_pandas() -> None:
    """They are installed here, and pyarrow would import both: 60 MB, and a stall of the loop."""
    assert said(STARTED) == ["[]", "shoal does without pandas"]


def test_a_command_imports_neither_numpy_nor_pandas() -> None:
    """Whatever it does: they would be a third of the time that `shoal produce` takes to start."""
    assert said(COMMAND) == ["7", "[]"]


def test_a_process_that_uses_them_keeps_them() -> None:
    """Tests and notebooks that run an agent within: nothing is taken from them."""
    assert said(LATE) == ["False", "1"]
