"""Spark Declarative Pipelines with a sink into a topic: Spark names every flow, among the sink's options."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, TypeAlias

import pytest

from shoal.spark import java

Cluster: TypeAlias = Any  # conftest's
SECONDS_MAX = 550.0


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 50)
def test_a_declarative_pipeline_writes_a_topic(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    """All records once; the second run goes on from its checkpoint; an unknown option is still refused."""
    cluster.fill("written", (), ())
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.find(tmp_path / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    program = pathlib.Path(__file__).with_name("declarative_program.py")
    finished = subprocess.run(
        [sys.executable, str(program), cluster.url(0), str(tmp_path / "storage")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert finished.returncode == 0, finished.stderr[-3_000:]
    said = json.loads(finished.stdout.splitlines()[-1])
    assert sum(log.high_watermark for log in cluster.topics["written"].values()) == 40
    assert "unknown option 'topik'; did you mean topic?" in said["misspelt"]
