"""What `shoal` exports is typed for pyright, and so for the editors that have it inside."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import node_tools

from tests.clients.checked import PROGRAM, copied, mistakes
from tests.clients.generating import TOOL_SECONDS

# A type that is unknown because of a mistake is reported beside it; elsewhere it is a fault of the package.
FOLLOWS = "reportUnknown"


def test_pyright_finds_exactly_the_mistakes_of_a_program(tmp_path: pathlib.Path) -> None:
    """Under its strict rules, which allow no unknown type."""
    copied(tmp_path)
    settings = {"include": [PROGRAM], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [node_tools.command("pyright"), "--pythonpath", sys.executable, "--outputjson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )
    said = json.loads(done.stdout)["generalDiagnostics"]
    found = {(item["range"]["start"]["line"] + 1, item["rule"]) for item in said}
    expected = mistakes("pyright")
    wrong = {line for line, _ in expected}
    alone = {(line, rule) for line, rule in found if not (line in wrong and rule.startswith(FOLLOWS))}
    assert alone == expected, done.stdout + done.stderr
