"""The Spark step of docs/tutorial.md as it stands there, and a real table read in the same session."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from spark_kills import agents, append_lines, ask, make_topic

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
TABLE_PROGRAM = pathlib.Path(__file__).with_name("table_program.py")
DEFAULT_AGENT = "http://127.0.0.1:7070"
TIMEOUT_SECONDS = 240.0  # ten seconds where nothing else runs
WRITTEN = {"ann": 4, "bob": 2, "eve": 1}
KEYS = 12_000
"""Of the table, between the two that change: more than one page of a scan."""


def program() -> str:
    """What the page gives to `python -`."""
    found = re.search(
        r"<!-- run: spark -->\n    python - <<'END'\n(.*?)    END\n", PAGE.read_text(), re.DOTALL
    )
    assert found is not None
    return textwrap.dedent(found[1])


def make_table(url: str) -> None:
    """One partition, so that all of a read is one cut."""
    body = {"kind": "table", "partitions": 1, "replication_factor": 3}
    ask(url, "PUT", "/v1/topics/numbers", json.dumps(body).encode())
    keys = ["a", *(f"k{number:05d}" for number in range(KEYS)), "z"]
    records = {"records": [{"key": key, "value": "0"} for key in keys]}
    ask(url, "POST", "/v1/topics/numbers/records", json.dumps(records).encode())


@contextlib.contextmanager
def changing(url: str) -> Iterator[None]:
    """The first row counts up, and the last one follows it: at every moment they are alike, or one apart."""
    ended = threading.Event()
    written = [0]

    def count() -> None:
        while not ended.is_set():
            written[0] += 1
            for key in ("a", "z"):
                ask(url, "PUT", f"/v1/tables/numbers/{key}", b"%d" % written[0])

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert written[0] > 1


def check_table(said: dict[str, Any]) -> None:
    """Its pages were read while it changed, and its rows are those of one moment."""
    assert said["schema"] == (
        "struct<key:binary,value:binary,partition:int,offset:bigint,timestamp:timestamp,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert {rows for rows, _, _ in said["pairs"]} == {KEYS + 2}
    assert all(first - last in (0, 1) for _, first, last in said["pairs"]), said["pairs"]
    assert said["pairs"][0][1] < said["pairs"][-1][1], "nothing changed meanwhile"
    assert said["prefix"] == [f"k0000{number}" for number in range(10)]
    assert said["tasks"] == 1
    assert "orders is a log, not a table" in said["log"]
    assert "numbres" in said["unknown"]


@pytest.mark.slow
def test_the_tutorials_spark_step_and_a_table_that_changes(tmp_path: pathlib.Path) -> None:
    """The step prints how many orders each customer has; a table's rows are those of one cut."""
    text = program()
    assert text.count(DEFAULT_AGENT) == 1
    with agents(tmp_path / "agents") as cluster:
        url = cluster.agents[0].url
        make_topic(url, "orders", 3)
        for number, (customer, orders) in enumerate(WRITTEN.items()):
            append_lines(url, "orders", number, [f'{{"customer":"{customer}"}}'] * orders)
        make_table(url)
        both = text.replace(DEFAULT_AGENT, url) + TABLE_PROGRAM.read_text().replace(
            "from __future__ import annotations\n", ""
        )
        with changing(url):
            ran = subprocess.run(
                [sys.executable, "-c", "from __future__ import annotations\n" + both],
                cwd=tmp_path,
                env={**os.environ, "SHOAL_AGENT": url},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = re.findall(r"^\|\s*(\w+)\|\s*(\d+)\|$", ran.stdout, re.MULTILINE)
    assert {customer: int(count) for customer, count in rows} == WRITTEN
    (said,) = re.findall("^SAID (.*)$", ran.stdout, re.MULTILINE)
    check_table(json.loads(said))
