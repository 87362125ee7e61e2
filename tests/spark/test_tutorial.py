"""The Spark step of docs/tutorial.md: its program, as it stands there, counts what earlier steps wrote."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
from spark_kills import agents, append_lines, make_topic

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
DEFAULT_AGENT = "http://127.0.0.1:7070"
TIMEOUT_SECONDS = 240.0  # ten seconds where nothing else runs
WRITTEN = {"ann": 4, "bob": 2, "eve": 1}


def program() -> str:
    """What the page gives to `python -`."""
    found = re.search(
        r"<!-- run: spark -->\n    python - <<'END'\n(.*?)    END\n", PAGE.read_text(), re.DOTALL
    )
    assert found is not None
    return textwrap.dedent(found[1])


@pytest.mark.slow
def test_the_tutorials_spark_step_works_as_it_stands(tmp_path: pathlib.Path) -> None:
    """It prints how many orders each customer has."""
    text = program()
    assert text.count(DEFAULT_AGENT) == 1
    with agents(tmp_path / "agents") as cluster:
        url = cluster.agents[0].url
        make_topic(url, "orders", 3)
        for number, (customer, orders) in enumerate(WRITTEN.items()):
            append_lines(url, "orders", number, [f'{{"customer":"{customer}"}}'] * orders)
        ran = subprocess.run(
            [sys.executable, "-c", text.replace(DEFAULT_AGENT, url)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = re.findall(r"^\|\s*(\w+)\|\s*(\d+)\|$", ran.stdout, re.MULTILINE)
    assert {customer: int(count) for customer, count in rows} == WRITTEN
