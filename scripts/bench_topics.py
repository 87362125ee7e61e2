"""Topics of benchmarks, and waiting for them: what the measurements of one agent and of several share.

Law of this file: over HTTP and from outside, as any user; every wait has an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import pathlib
import secrets
import ssl
import statistics
import time
import urllib.request
from collections.abc import Iterable
from typing import Any

import cluster
import load
import pyarrow as pa

ARROW = "application/vnd.apache.arrow.stream"
BATCH_RECORDS = 1000
RECORD_BYTES = 100
RUN_TIMEOUT_SECONDS = 120.0
CATCH_UP_TIMEOUT_SECONDS = 60.0
DUE_TEXT = b"due=%016d;"
DUE_BYTES = len(DUE_TEXT % 0)
"""What a value of a record with a due time begins with."""
SUMMER_2013 = datetime.datetime(2013, 7, 1, tzinfo=datetime.UTC)


def arrow_body(
    records: int = BATCH_RECORDS,
    value_bytes: int = RECORD_BYTES,
    keys: list[bytes] | None = None,
    due_us: list[int] | None = None,
) -> bytes:
    """An Arrow stream with one batch of 1,000 records of 100 bytes, without keys. `due_us`: for a topic of
    kind timer; the values say the same."""
    schema = pa.schema(
        [
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            (
                "headers",
                pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ),
        ]
    )
    values = [secrets.token_bytes(value_bytes) for _ in range(records)]
    columns = [
        pa.array([SUMMER_2013] * records, schema.field(0).type),
        pa.nulls(records, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(records, schema.field(3).type),
    ]
    if due_us is not None:
        schema = schema.append(pa.field("deliver_at", pa.timestamp("us", tz="UTC")))
        columns[2] = pa.array(
            [DUE_TEXT % due + value[DUE_BYTES:] for due, value in zip(due_us, values, strict=True)],
            pa.binary(),
        )
        columns.append(pa.array(due_us, schema.field(4).type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return bytes(sink.getvalue())


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise cluster.ClusterProblem(f"process {pid} is gone")


def create_topic(
    url: str, name: str, partitions: int, replicas: int, settings: dict[str, Any] | None = None
) -> None:
    asked = {"partitions": partitions, "replication_factor": replicas, **(settings or {})}
    body = json.dumps(asked).encode()
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/topics/{name}", body, {"Content-Type": "application/json"}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=RUN_TIMEOUT_SECONDS) as answer:  # noqa: S310
        assert answer.status in {200, 201}
    wait_leader(url, name)


def wait_leader(url: str, topic: str) -> str:
    """The URL of the leader of partition 0."""
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        routes = cluster.get(url, f"/v1/routes?topic={topic}")["topics"].get(topic)
        if routes and routes["partitions"][0]["leader_url"]:
            return str(routes["partitions"][0]["leader_url"])
        time.sleep(cluster.POLL_SECONDS)
    raise cluster.ClusterProblem(f"topic {topic} has no leader")


def wait_ready(agents: cluster.LocalCluster) -> None:
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_SECONDS
    for agent in agents.live():
        while True:
            with contextlib.suppress(OSError, cluster.ClusterProblem):
                members = cluster.get(agent.url, "/v1/members?status=alive")["members"]
                cluster.get(agent.url, "/readyz?verbose")
                if len(members) == len(agents.live()):
                    break
            if time.monotonic() > deadline:
                raise cluster.ClusterProblem(f"agent {agent.name} is not ready: {agent.last_words()}")
            time.sleep(cluster.POLL_SECONDS)


def wait_caught_up(agents: cluster.LocalCluster) -> None:
    """All three replicas hold the whole log: the next kill must not meet a lone survivor."""
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        topic = cluster.get(agents.live()[0].url, "/v1/topics")["topics"][0]
        if topic["under_replicated"] == 0:
            ends = {
                partition["log_end_offset"]
                for member in cluster.get(agents.live()[0].url, "/v1/members?status=alive")["members"]
                for partition in member["partitions"]
                if partition["topic"] == "bench"
            }
            if len(ends) == 1:
                return
        time.sleep(cluster.POLL_SECONDS)
    raise cluster.ClusterProblem("the restarted agent did not catch up in time")


def append_until_acknowledged(url: str) -> None:
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        request = urllib.request.Request(  # noqa: S310
            f"{url}/v1/topics/bench/partitions/0/records", b"x", {"Content-Type": "text/plain"}
        )
        with (
            contextlib.suppress(OSError),  # an HTTPError is one too
            urllib.request.urlopen(request, timeout=2.0) as answer,  # noqa: S310
        ):
            if answer.status == 200:
                return
        time.sleep(0.01)
    raise cluster.ClusterProblem("no append was acknowledged in time")


def post(
    request: bytes | Iterable[bytes],
    url: str,
    *,
    connections: int,
    requests: int,
    tls: ssl.SSLContext | None = None,
) -> load.Measured:
    timeout_s = RUN_TIMEOUT_SECONDS
    return asyncio.run(
        load.measure(request, url, connections=connections, requests=requests, timeout_s=timeout_s, tls=tls)
    )


def p50_us(request: bytes, url: str, requests: int, tls: ssl.SSLContext | None = None) -> float:
    """The median microseconds of a request, one at a time."""
    return statistics.median(post(request, url, connections=1, requests=requests, tls=tls).latencies_us)
