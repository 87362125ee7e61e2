"""The numbers of one agent since it started, each kept where it happens.

Law of this file: integers and histograms, to which their users add directly. Nothing is counted for each
record: a batch, a frame or a request is the smallest thing that touches a number here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping

from shoal.agent.metrics.histogram import BOUNDS_NS, Histogram

NO_OPERATION = "none"
"""Of an answer to what is no request of the API: an unknown path, a refused host, bytes that are not HTTP."""
ABORTED = "aborted"
"""The status of an answer that its client did not take to the end."""


class GroupMeasures:
    """Messages of consumer groups, by the leader that made the entry, once that is committed. `nacked`: given
    back as failed, the last time too; `released`: come again without an attempt; `lettered`: stored in a
    dead-letter topic."""

    __slots__ = (
        "acked", "dead", "lettered", "nacked", "received", "redelivered", "rejected", "released", "skipped",
        "stopped",
    )  # fmt: skip

    def __init__(self) -> None:
        self.received = 0
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0
        self.released = 0
        self.rejected = 0
        self.stopped = 0
        self.dead = 0
        self.lettered = 0
        self.skipped = 0

    def __repr__(self) -> str:
        counted = {name: getattr(self, name) for name in self.__slots__}
        return f"GroupMeasures({', '.join(f'{name}={number}' for name, number in counted.items() if number)})"

    def add(self, counted: Mapping[str, int]) -> None:
        """Add numbers by their names."""
        for name, number in counted.items():
            setattr(self, name, getattr(self, name) + number)


class Measures:
    """Of replicas, disk and event loop."""

    __slots__ = (
        "appended_bytes", "appended_records", "certificates", "commit", "elections", "fetch", "fetched_bytes",
        "fetched_records", "groups", "leaderships_gained", "leaderships_lost", "loop_lag", "replication",
        "sync", "tls_refusals", "trimmed_bytes", "trimmed_records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.appended_records = 0
        self.appended_bytes = 0
        self.fetched_records = 0
        self.fetched_bytes = 0
        self.trimmed_records = 0
        self.trimmed_bytes = 0
        self.elections = 0
        self.leaderships_gained = 0
        self.leaderships_lost = 0
        self.certificates: Mapping[str, float] = {}
        """When the certificates of a setting's file expire, the earliest one: since the epoch."""
        self.tls_refusals: dict[str, int] = {}
        """Connections that TLS has not let in, by kind."""
        self.groups = GroupMeasures()
        self.sync = Histogram()
        self.commit = Histogram()
        self.replication = Histogram()
        self.fetch = Histogram()
        self.loop_lag = Histogram()


class LinkTraffic:
    """Of all links of one kind. Bytes with the heads of frames."""

    __slots__ = ("received_bytes", "received_frames", "sent_bytes", "sent_frames")

    def __init__(self) -> None:
        self.sent_frames = 0
        self.sent_bytes = 0
        self.received_frames = 0
        self.received_bytes = 0


class Tally:
    """A number whose owner has it at hand: nobody looks for it where it is counted."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class HttpMeasures:
    """Of an agent's HTTP server. `requests`: answers by operation and status, of which the API has few.
    `quota_refusals`: by the quota that was used up."""

    __slots__ = ("append", "quota_refusals", "requests")

    def __init__(self) -> None:
        self.append = Histogram()
        self.requests: defaultdict[tuple[str, int | str], Tally] = defaultdict(Tally)
        self.quota_refusals: Mapping[str, int] = {}

    def answered(self, operation: str, status: int | str) -> None:
        """One request is over."""
        self.requests[operation, status].count += 1

    def appended(self, answers: Tally, took_ns: int) -> None:
        """One append on the short way is acknowledged. One call counts and observes it: single records have
        nobody to share their cost with."""
        answers.count += 1
        append = self.append
        append.counts[bisect_left(BOUNDS_NS, took_ns)] += 1
        append.sum_ns += took_ns
