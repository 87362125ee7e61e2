"""Counts of what the pipeline of the show has made: its view and its topic hold all orders that were sent.

Law of this file: it reads what a user would: the Parquet files of the view, and the topic over plain HTTP.
Arguments: the agents' URLs (comma separated), the project, how many orders were sent. Exit code 0 only when
both hold exactly these.
"""

from __future__ import annotations

import json
import pathlib
import sys

import pyarrow.parquet as pq
from arrow_check import topic_values


def main() -> int:
    agents, project, sent = sys.argv[1:4]
    view = (
        pq.read_table(pathlib.Path(project, "spark-warehouse", "customers")).sort_by("customer").to_pylist()
    )
    values = topic_values(agents.split(",")[0], "receipts")
    receipts = [json.loads(value)["customer"] for value in values]
    print(f"\n{'customer':<10}{'orders in the view':>20}{'receipts in the topic':>23}")
    for row in view:
        print(f"{row['customer']:<10}{row['orders']:>20,}{receipts.count(row['customer']):>23,}")
    counted, items = sum(row["orders"] for row in view), {json.loads(value)["item"] for value in values}
    print(f"{'all':<10}{counted:>20,}{len(receipts):>23,}   of {int(sent):,} that were sent\n", flush=True)
    equal = all(row["orders"] == receipts.count(row["customer"]) for row in view)
    return 0 if equal and counted == len(receipts) == len(items) == int(sent) else 1


if __name__ == "__main__":
    sys.exit(main())
