"""Reads a table that changes meanwhile, in the session that the tutorial's step has made.

Law of this file: it says what it saw as one line of JSON; test_tutorial.py judges.
"""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.builder.getOrCreate()

READS = 8


def load(**options: str) -> DataFrame:
    """Rows of a table."""
    return spark.read.format("shoal").option("agent", os.environ["SHOAL_AGENT"]).options(**options).load()


def refusal(table: str) -> str:
    """Of a table that is none."""
    try:
        load(table=table).count()
    except PySparkException as error:
        return str(error)
    return "none"


def pair() -> list[Any]:
    """How many rows there are, and the values of the first and of the last key: all of one read."""
    rows = {bytes(row["key"]): bytes(row["value"]) for row in load(table="numbers").collect()}
    return [len(rows), int(rows[b"a"]), int(rows[b"z"])]


said = {
    "schema": load(table="numbers").schema.simpleString(),
    "pairs": [pair() for _ in range(READS)],
    "prefix": sorted(bytes(row["key"]).decode() for row in load(table="numbers", prefix="k0000").collect()),
    "tasks": load(table="numbers").rdd.getNumPartitions(),
    "log": refusal("orders"),
    "unknown": refusal("numbres"),
}
print("SAID " + json.dumps(said))
