"""Every metric of an agent: name, kind, labels, and what it says. docs/operations/metrics.md is made of this.

Law of this file: values. Names follow Prometheus: one prefix, base units at the end, `_total` for what only
grows; process_* as Prometheus' own clients name them. A name that was released stays.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class MetricKind(StrEnum):
    """As `# TYPE` shows it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """`per_partition`: exposed only when asked for, one series for each replica here."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    per_partition: bool = False


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(name, MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, MetricKind.GAUGE, text, labels)


def _histogram(name: str, text: str) -> Family:
    return Family(name, MetricKind.HISTOGRAM, text)


def _of_partition(name: str, text: str, *more: str) -> Family:
    return Family(name, MetricKind.GAUGE, text, ("topic", "partition", *more), per_partition=True)


_AGENT = (
    _gauge("shoal_build_info", "1; version, and the kind of disk access.", "version", "disk"),
    _gauge("shoal_uptime_seconds", "Since this process started."),
    _gauge("shoal_insecure", "1: bound beyond loopback without TLS, authentication or a gossip key."),
    _histogram("shoal_loop_lag_seconds", "How late the event loop runs a timer, ten times a second."),
)
_CLUSTER = (
    _gauge("shoal_members", "Members by status, as this agent sees them.", "status", "kind"),
    _gauge("shoal_cluster_level", "Feature level of the cluster, once this agent has joined one."),
    _gauge("shoal_understood_level", "Highest feature level that this agent understands."),
    _gauge("shoal_topics", "Topics in the catalog."),
    _gauge("shoal_kept_topics", "Topics here that the catalog does not know."),
    _gauge(
        "shoal_partitions_without_leader",
        "Partitions without a leader that have a voter here, or whose voters are all gone.",
    ),
    _gauge("shoal_partitions_under_replicated", "Partitions led here with replicas on agents that are gone."),
    _gauge("shoal_clock_doubted", "1 while this machine's clock is not believed."),
    _gauge("shoal_clock_wrong_peers", "Agents whose clocks differ from this one's."),
)
_REPLICAS = (
    _gauge("shoal_replicas", "Replicas here that serve, by role: leader, follower, candidate.", "role"),
    _gauge(
        "shoal_replicas_out_of_service",
        "Replicas here that do not serve, by state: installing, failed, lost.",
        "state",
    ),
    _gauge("shoal_log_size_bytes", "Bytes of all logs on this disk."),
    _gauge("shoal_damaged_ranges", "Ranges of all logs on this disk that do not verify."),
    _counter(
        "shoal_cleared_writes_total",
        "Newest writes cleared for incomplete at this start, though the power had held.",
    ),
    _counter("shoal_elections_total", "Elections that replicas here have begun."),
    _counter("shoal_leaderships_gained_total", "Times that a replica here began to lead."),
    _counter("shoal_leaderships_lost_total", "Times that a replica here stopped leading."),
    _gauge(
        "shoal_follower_lag_entries",
        "Entries that a follower lacks of a log led here; of all logs the largest.",
        "follower",
    ),
)
_RECORDS = (
    _counter("shoal_appended_records_total", "Records committed while this agent led their partition."),
    _counter("shoal_appended_bytes_total", "Bytes of their batches, as stored."),
    _counter("shoal_fetched_records_total", "Records of the batches that were read here for clients."),
    _counter("shoal_fetched_bytes_total", "Bytes of those batches, as stored."),
    _counter("shoal_trimmed_records_total", "Records of replicas here that retention or a trim removed."),
    _counter("shoal_trimmed_bytes_total", "Bytes of their segments."),
    _histogram("shoal_append_seconds", "From the whole body of an append led here to its acknowledgement."),
    _histogram("shoal_commit_seconds", "From proposing a batch here to its commit."),
    _histogram("shoal_replication_seconds", "From sending entries to a follower to its acknowledgement."),
    _histogram("shoal_fetch_seconds", "Finding and reading what a fetch answers; waits are not in it."),
    _histogram("shoal_fsync_seconds", "A write with its sync, or a sync alone, on this disk."),
)
_GROUPS = (
    _counter("shoal_group_received_messages_total", "Messages that leaders here gave to consumers."),
    _counter("shoal_group_redelivered_messages_total", "Of these, attempts after the first."),
    _counter("shoal_group_acked_messages_total", "Messages that consumers acknowledged here."),
    _counter("shoal_group_nacked_messages_total", "Messages that consumers here gave back as failed."),
    _counter(
        "shoal_group_released_messages_total",
        "Messages that came back here without an attempt: released, or taken back to keep their order.",
    ),
    _counter("shoal_group_rejected_messages_total", "Messages that consumers here gave up."),
    _counter("shoal_group_stopped_messages_total", "Messages that stopped here until somebody decides."),
    _counter("shoal_group_dead_messages_total", "Messages that became dead letters here, or were dropped."),
    _counter("shoal_group_letters_total", "Dead letters of groups led here that their topics have taken."),
    _counter(
        "shoal_group_skipped_messages_total",
        "Messages that retention or damage took here before they were done.",
    ),
)
_LINKS = (
    _gauge("shoal_links", "Open connections to other agents, by kind: control, bulk.", "kind"),
    _counter("shoal_link_frames_sent_total", "Frames to other agents.", "kind"),
    _counter("shoal_link_frames_received_total", "Frames from other agents.", "kind"),
    _counter("shoal_link_sent_bytes_total", "Bytes of frames to other agents.", "kind"),
    _counter("shoal_link_received_bytes_total", "Bytes of frames from other agents.", "kind"),
    _counter("shoal_link_frames_dropped_total", "Frames to peers that were dropped; Raft repeats them."),
)
_DISK = (
    _gauge("shoal_disk_free_bytes", "Free on the file system of the data directory."),
    _gauge("shoal_disk_size_bytes", "Size of that file system."),
    _gauge("shoal_disk_refusing", "1 while appends are refused because the disk is full."),
    _counter(
        "shoal_disk_refused_total", "Appends, trims, new topics and leaders' entries refused for a full disk."
    ),
    _counter("shoal_scrub_bytes_total", "Stored bytes read again and verified."),
    _counter("shoal_scrub_passes_total", "Times that everything here was verified."),
    _counter("shoal_scrub_damage_found_total", "Damaged ranges the scrubber was first to find."),
    _gauge("shoal_scrub_last_pass_seconds", "How long the last whole pass took."),
)
_HTTP = (
    _counter(
        "shoal_http_requests_total",
        "Answers by operation of the API and by status; aborted: not sent to the end.",
        "operation",
        "status",
    ),
    _gauge("shoal_http_requests_in_flight", "Appends and reads at work."),
    _gauge("shoal_http_waits_in_flight", "Long polls waiting for news."),
    _gauge("shoal_http_in_flight_bytes", "Bodies and answers held."),
    _counter("shoal_http_refused_total", "Requests refused as overload."),
    _counter(
        "shoal_quota_refused_total",
        "Requests refused for a quota, or as too many failed logins, by that limit.",
        "quota",
    ),
)
_AUDIT = (
    _counter("shoal_audit_records_total", "Records of this agent that stand in the topic `_audit`."),
    _counter(
        "shoal_audit_left_out_total",
        "Refusals and logins of browsers beyond 100 a second and address, and what found no room.",
    ),
)
_TLS = (
    _gauge(
        "shoal_tls_certificate_expires_seconds",
        "Until the certificate expires, or the first authority of that file does; below 0 since then.",
        "file",
    ),
    _counter(
        "shoal_tls_refused_total",
        "Connections that TLS did not let in: without TLS, with a certificate that is not good, too slow.",
        "reason",
    ),
)
_PROCESS = (
    _counter("process_cpu_seconds_total", "User and system time of this process."),
    _gauge("process_open_fds", "Open files and sockets."),
    _gauge("process_max_fds", "How many there may be."),
    _gauge("process_resident_memory_bytes", "Memory that is in use."),
    _gauge("process_virtual_memory_bytes", "Address space that is in use."),
    _gauge("process_start_time_seconds", "When this process started, since the epoch."),
)
_PARTITIONS = (
    _of_partition("shoal_partition_leader", "1 where this agent leads the partition."),
    _of_partition("shoal_partition_term", "Raft term."),
    _of_partition("shoal_partition_log_start_offset", "First offset held."),
    _of_partition("shoal_partition_high_watermark", "Offset after the last committed record."),
    _of_partition("shoal_partition_log_end_offset", "Offset after the last record."),
    _of_partition("shoal_partition_size_bytes", "Bytes of the log on this disk."),
    _of_partition("shoal_partition_damaged_ranges", "Ranges of the log on this disk that do not verify."),
    _of_partition(
        "shoal_partition_follower_lag_entries", "Entries that a follower lacks of a log led here.", "follower"
    ),
)
_GROUPS_OF_PARTITIONS = (
    _of_partition("shoal_group_lag_records", "Messages led here that the group has not done.", "group"),
    _of_partition(
        "shoal_group_lag_seconds", "Age of the first of them; in timer topics since it was due.", "group"
    ),
    _of_partition("shoal_group_in_flight_records", "Of these, in the hands of consumers.", "group"),
    _of_partition("shoal_group_delayed_records", "Of these, waiting for another attempt.", "group"),
    _of_partition("shoal_group_stopped_records", "Of these, stopped until somebody decides.", "group"),
    _of_partition("shoal_group_window_full", "1 while a bound keeps the group from more messages.", "group"),
)
SECTIONS: Final = {
    "The agent": _AGENT,
    "The cluster": _CLUSTER,
    "Replicas": _REPLICAS,
    "Records": _RECORDS,
    "Consumer groups": _GROUPS,
    "Links": _LINKS,
    "The disk": _DISK,
    "HTTP": _HTTP,
    "TLS": _TLS,
    "The audit": _AUDIT,
    "The process": _PROCESS,
    "Partitions": _PARTITIONS,
    "Consumer groups in partitions": _GROUPS_OF_PARTITIONS,
}
"""By what they are about, in the order in which they are exposed."""
FAMILIES: Final = tuple(family for section in SECTIONS.values() for family in section)
