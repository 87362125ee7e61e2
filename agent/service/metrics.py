"""The agent's numbers in Prometheus' text format.

Law of this file: the only one that knows prometheus_client. Everything is computed when asked for, from
snapshots; nothing is counted here. Names: one prefix, base units, per-partition series only for replicas
held here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from shoal.agent.host.scrubber import ScrubStatistics

MEMBER_STATUSES = ("alive", "suspect", "failed", "leaving", "left")
PARTITION_LABELS = ["topic", "partition"]


class _Snapshot:
    """One collection's metrics, as prometheus_client wants to be given them."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def render_metrics(
    *,
    version: str,
    disk_kind: str,
    members: Sequence[tuple[str, bool]],
    topics: int,
    statuses: Sequence[tuple[str, int, Any]],
    dropped_frames: int,
    uptime_ms: int,
    scrub: ScrubStatistics | None = None,
    kept_topics: int = 0,
    cleared_writes: int = 0,
) -> bytes:
    """`members`: (status, is a shoal agent). `statuses`: (topic, partition, ReplicaStatus) of replicas held
    here.
    """
    registry = CollectorRegistry(auto_describe=False)
    metrics = [
        InfoMetricFamily("shoal_build", "What runs here.", value={"version": version, "disk": disk_kind}),
        GaugeMetricFamily("shoal_uptime_seconds", "Since this process started.", value=uptime_ms / 1_000),
        GaugeMetricFamily("shoal_topics", "Topics in the catalog.", value=topics),
        CounterMetricFamily(
            "shoal_link_frames_dropped",
            "Frames to peers that were dropped; Raft repeats them.",
            value=dropped_frames,
        ),
        CounterMetricFamily(
            "shoal_cleared_writes",
            "Newest writes cleared for incomplete at this start, though the power had held.",
            value=cleared_writes,
        ),
        GaugeMetricFamily(
            "shoal_kept_topics",
            "Topics that the catalog does not know and this agent holds replicas of.",
            value=kept_topics,
        ),
        _members(members),
        *_partitions(statuses),
        *(() if scrub is None else _scrub(scrub)),
    ]
    registry.register(_Snapshot(metrics))
    return generate_latest(registry)


def _members(members: Sequence[tuple[str, bool]]) -> Metric:
    family = GaugeMetricFamily("shoal_members", "Members by status.", labels=["status", "kind"])
    counts = Counter(members)
    for status in MEMBER_STATUSES:
        family.add_metric([status, "shoal"], counts[status, True])
        if counts[status, False]:
            family.add_metric([status, "serf"], counts[status, False])
    return family


def _partitions(statuses: Sequence[tuple[str, int, Any]]) -> list[Metric]:
    described = (
        (
            "shoal_partition_leader",
            "1 where this agent leads the partition.",
            lambda status: int(status.role.name == "LEADER"),
        ),
        ("shoal_partition_term", "Raft term.", lambda status: status.term),
        ("shoal_partition_log_start_offset", "First offset held.", lambda status: status.log_start_offset),
        (
            "shoal_partition_high_watermark",
            "Offset after the last committed record.",
            lambda status: status.high_watermark,
        ),
        (
            "shoal_partition_log_end_offset",
            "Offset after the last record.",
            lambda status: status.log_end_offset,
        ),
        ("shoal_partition_size_bytes", "Bytes of the log on this disk.", lambda status: status.size_bytes),
        (
            "shoal_partition_damaged_ranges",
            "Ranges of the log on this disk that do not verify.",
            lambda status: len(status.damaged_ranges),
        ),
    )
    families: list[Metric] = []
    for name, text, value in described:
        family = GaugeMetricFamily(name, text, labels=PARTITION_LABELS)
        for topic, partition, status in statuses:
            family.add_metric([topic, str(partition)], value(status))
        families.append(family)
    return families


def _scrub(scrub: ScrubStatistics) -> list[Metric]:
    last_pass_s = (scrub.last_pass_ms or 0) / 1_000
    return [
        CounterMetricFamily(
            "shoal_scrub_bytes", "Stored bytes read again and verified.", value=scrub.bytes_read
        ),
        CounterMetricFamily(
            "shoal_scrub_passes", "Times that everything here was verified.", value=scrub.passes
        ),
        CounterMetricFamily(
            "shoal_scrub_damage_found",
            "Damaged ranges the scrubber was first to find.",
            value=scrub.ranges_found,
        ),
        GaugeMetricFamily(
            "shoal_scrub_last_pass_seconds", "How long the last whole pass took.", value=last_pass_s
        ),
    ]
