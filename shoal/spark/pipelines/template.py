"""The project that `shoal spark init` writes: from a topic to a table with a view, and to a topic.

Law of this file: text. docs/spark.md shows it, and a test runs it as it stands. Between at-signs stand the
values of a project: @name@ and @storage@ as YAML has them, @directory@ as a path.
"""

from __future__ import annotations

from typing import Final

SPEC_FILE: Final = "spark-pipeline.yml"
SETTINGS_FILE: Final = "spark-defaults.conf"
STORAGE: Final = "pipeline-storage"

_SPEC: Final = """\
name: @name@
storage: @storage@
libraries:
  - glob:
      include: transformations/**
"""

_SETTINGS: Final = """\
# Static settings, which Spark refuses in spark-pipeline.yml.
# The catalog outlives a run: without it the second run finds the places of its tables taken.
spark.sql.catalogImplementation              hive
spark.hadoop.javax.jdo.option.ConnectionURL  jdbc:derby:;databaseName=@directory@/metastore_db;create=true
spark.sql.warehouse.dir                      @directory@/spark-warehouse
spark.ui.enabled                             false
"""

_PYTHON: Final = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.temporary_view
def parsed_orders() -> DataFrame:
    records = (
        spark.readStream.format("shoal")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "customer string, item int")
    return records.select("partition", "offset", "timestamp", order.alias("order")).select(
        "partition", "offset", "timestamp", "order.*"
    )


@dp.table
def orders() -> DataFrame:
    return spark.readStream.table("parsed_orders")


dp.create_sink("receipts", "shoal", {"topic": "receipts"})


@dp.append_flow(target="receipts")
def receipts_of_orders() -> DataFrame:
    return spark.readStream.table("parsed_orders").selectExpr(
        "customer AS key", "to_json(struct(customer, item)) AS value"
    )
"""

_SQL: Final = """\
CREATE MATERIALIZED VIEW customers AS
SELECT customer, count(*) AS orders, max(timestamp) AS last_order
FROM orders
GROUP BY customer;
"""

_IGNORED: Final = f"""\
{STORAGE}/
spark-warehouse/
metastore_db/
derby.log
__pycache__/
"""

FILES: Final = {
    SPEC_FILE: _SPEC,
    SETTINGS_FILE: _SETTINGS,
    "transformations/orders.py": _PYTHON,
    "transformations/customers.sql": _SQL,
    ".gitignore": _IGNORED,
}
"""Each file by its path in the project."""
