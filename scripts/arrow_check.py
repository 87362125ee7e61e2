"""The same check as spark_check.py without Spark: pyarrow reads the topic over plain HTTP.

Law of this file: an ordinary reader, as a user would write it with the standard library and pyarrow.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys
import time
import urllib.request

import flights
import pyarrow as pa
import pyarrow.ipc

REQUEST_TIMEOUT_SECONDS = 30.0
MAX_BYTES = 8 * 2**20


def topic_values(agent: str, topic: str) -> list[bytes]:
    """All values of a topic, partition by partition."""
    routes = f"{agent}/v1/routes?topic={topic}"
    with urllib.request.urlopen(routes, timeout=REQUEST_TIMEOUT_SECONDS) as answer:  # noqa: S310
        partitions = len(json.load(answer)["topics"][topic]["partitions"])
    return [value for number in range(partitions) for value in partition_values(agent, topic, number)]


def partition_values(agent: str, topic: str, partition: int) -> list[bytes]:
    """All values of one partition, in order."""
    values: list[bytes] = []
    offset = 0
    while True:
        url = (
            f"{agent}/v1/topics/{topic}/partitions/{partition}/records?offset={offset}&max_bytes={MAX_BYTES}"
        )
        request = urllib.request.Request(url, headers={"Accept": "application/vnd.apache.arrow.stream"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as answer:  # noqa: S310
            base = int(answer.headers["Shoal-Base-Offset"])
            following = int(answer.headers["Shoal-Next-Offset"])
            high_watermark = int(answer.headers["Shoal-High-Watermark"])
            table = pa.ipc.open_stream(answer.read()).read_all()
        values.extend(table.column("value").to_pylist()[offset - base :])
        offset = following
        if offset >= high_watermark:
            return values


def main() -> int:
    agents, path = sys.argv[1:3]
    agent = agents.split(",")[0]
    started = time.monotonic()
    values = topic_values(agent, "flights")
    seconds = time.monotonic() - started
    topic = collections.Counter(values)
    source = collections.Counter(pathlib.Path(path).read_bytes().splitlines())
    lost, twice = (source - topic).total(), (topic - source).total()
    print(f"pyarrow read {len(values):,} records in {seconds:.1f} s: {lost:,} lost, {twice:,} too often")
    delays: dict[str, list[int]] = collections.defaultdict(list)
    for flight in map(json.loads, values):
        if flight["arr_delay"] is not None:
            delays[flight["carrier"]].append(flight["arr_delay"])
    names = flights.carriers()
    print(f"\n{'carrier':<9}{'airline':<30}{'mean arrival delay':>21}")
    for carrier, minutes in sorted(delays.items(), key=lambda item: sum(item[1]) / len(item[1])):
        print(f"{carrier:<9}{names.get(carrier, '?'):<30}{sum(minutes) / len(minutes):>17.1f} min")
    return 0 if lost == twice == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
