"""The metrics of an agent: numbers that it keeps, and facts that are looked up when asked for.

Law of this file: it reads and adds up; nothing is counted here, and no text is made. A walk over replicas
gives the event loop back after each REPLICAS_PER_TURN of them: an agent may hold thousands. Names and help
texts stand in agent/metrics/families.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.fold import GroupFold
from shoal.agent.host.free_space import FreeSpace
from shoal.agent.host.host import Host
from shoal.agent.host.scrubber import ScrubStatistics
from shoal.agent.log_lines.cluster_news import ClusterNews
from shoal.agent.log_lines.names import agent_name
from shoal.agent.members import tags
from shoal.agent.metrics.exposition import Labels, Number, Reading
from shoal.agent.metrics.measures import Measures
from shoal.agent.partition.clock_skew import PeerClocks
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.status import ReplicaStatus, ServingState, status_of
from shoal.agent.peers.links import Links
from shoal.agent.process.clock import by_turns
from shoal.agent.process.process_statistics import ProcessStatistics
from shoal.agent.receive import GroupNumbers
from shoal.agent.security.audit import AuditTrail
from shoal.errors import ShoalError
from shoal.membership.interface import Member

REPLICAS_PER_TURN = 64
"""Less than a millisecond of work."""
MEMBER_STATUSES = ("alive", "suspect", "failed", "leaving", "left")
ROLES = {"LEADER": "leader", "FOLLOWER": "follower", "PRE_CANDIDATE": "candidate", "CANDIDATE": "candidate"}
OUT_OF_SERVICE = (ServingState.INSTALLING, ServingState.FAILED, ServingState.LOST)
OF_PARTITION: Mapping[str, Callable[[ReplicaStatus], int]] = {
    "shoal_partition_leader": lambda status: int(status.role.name == "LEADER"),
    "shoal_partition_term": lambda status: status.term,
    "shoal_partition_log_start_offset": lambda status: status.log_start_offset,
    "shoal_partition_high_watermark": lambda status: status.high_watermark,
    "shoal_partition_log_end_offset": lambda status: status.log_end_offset,
    "shoal_partition_size_bytes": lambda status: status.size_bytes,
    "shoal_partition_damaged_ranges": lambda status: len(status.damaged_ranges),
}

OF_GROUP: Mapping[str, Callable[[GroupNumbers], int]] = {
    "shoal_group_lag_records": lambda numbers: numbers.lag,
    "shoal_group_in_flight_records": lambda numbers: numbers.in_flight,
    "shoal_group_delayed_records": lambda numbers: numbers.delayed,
    "shoal_group_stopped_records": lambda numbers: numbers.stopped,
    "shoal_group_window_full": lambda numbers: int(numbers.window == "window-full"),
}


def of_measures(measures: Measures) -> Reading:
    """Numbers that are counted where things happen."""
    return {
        "shoal_loop_lag_seconds": measures.loop_lag,
        "shoal_elections_total": measures.elections,
        "shoal_leaderships_gained_total": measures.leaderships_gained,
        "shoal_leaderships_lost_total": measures.leaderships_lost,
        "shoal_appended_records_total": measures.appended_records,
        "shoal_appended_bytes_total": measures.appended_bytes,
        "shoal_fetched_records_total": measures.fetched_records,
        "shoal_fetched_bytes_total": measures.fetched_bytes,
        "shoal_trimmed_records_total": measures.trimmed_records,
        "shoal_trimmed_bytes_total": measures.trimmed_bytes,
        "shoal_group_received_messages_total": measures.groups.received,
        "shoal_group_redelivered_messages_total": measures.groups.redelivered,
        "shoal_group_acked_messages_total": measures.groups.acked,
        "shoal_group_nacked_messages_total": measures.groups.nacked,
        "shoal_group_released_messages_total": measures.groups.released,
        "shoal_group_rejected_messages_total": measures.groups.rejected,
        "shoal_group_stopped_messages_total": measures.groups.stopped,
        "shoal_group_dead_messages_total": measures.groups.dead,
        "shoal_group_letters_total": measures.groups.lettered,
        "shoal_group_skipped_messages_total": measures.groups.skipped,
        "shoal_commit_seconds": measures.commit,
        "shoal_replication_seconds": measures.replication,
        "shoal_fetch_seconds": measures.fetch,
        "shoal_fsync_seconds": measures.sync,
    }


def of_tls(measures: Measures, now_us: int) -> Reading:
    """Certificates by the setting that names their file; none of an agent in the open, which refuses
    nobody."""
    left: dict[Labels, Number] = {
        (name,): until - now_us / 1_000_000 for name, until in measures.certificates.items()
    }
    refused: dict[Labels, Number] = {(kind,): count for kind, count in measures.tls_refusals.items()}
    return {"shoal_tls_certificate_expires_seconds": left, "shoal_tls_refused_total": refused}


def of_audit(trail: AuditTrail | None) -> Reading:
    """An agent that asks for no credentials has written nothing."""
    written, left_out = (0, 0) if trail is None else (trail.written, trail.left_out)
    return {"shoal_audit_records_total": written, "shoal_audit_left_out_total": left_out}


def of_members(members: Iterable[Member]) -> Reading:
    """All statuses of agents, so that a graph does not begin with the first failure; of others what there
    is."""
    counts = Counter((member.status, tags.is_shoal(member)) for member in members)
    shown: dict[Labels, Number] = {(status, "shoal"): counts[status, True] for status in MEMBER_STATUSES}
    shown |= {(status, "serf"): counts[status, False] for status in MEMBER_STATUSES if counts[status, False]}
    return {"shoal_members": shown}


def of_news(news: ClusterNews) -> Reading:
    """Partitions in trouble: the log has warned of them, or will if it lasts."""
    return {
        "shoal_partitions_without_leader": news.leaderless,
        "shoal_partitions_under_replicated": news.under_replicated,
    }


def of_links(links: Links) -> Reading:
    """Of all peers together."""
    peers = links.statistics()
    traffic = {(kind.name.lower(),): item for kind, item in links.traffic.items()}
    return {
        "shoal_links": {
            ("control",): sum(peer.control for peer in peers),
            ("bulk",): sum(peer.bulk for peer in peers),
        },
        "shoal_link_frames_sent_total": {kind: item.sent_frames for kind, item in traffic.items()},
        "shoal_link_frames_received_total": {kind: item.received_frames for kind, item in traffic.items()},
        "shoal_link_sent_bytes_total": {kind: item.sent_bytes for kind, item in traffic.items()},
        "shoal_link_received_bytes_total": {kind: item.received_bytes for kind, item in traffic.items()},
        "shoal_link_frames_dropped_total": links.dropped_frames,
    }


def of_clocks(clocks: PeerClocks) -> Reading:
    """Of this machine, and of the peers that were asked."""
    return {
        "shoal_clock_doubted": int(clocks.is_doubted),
        "shoal_clock_wrong_peers": clocks.wrong_peers,
    }


def of_disk(free_space: FreeSpace) -> Reading:
    """Sizes once they were looked at, a moment after the start."""
    reading: dict[str, Number] = {
        "shoal_disk_refusing": int(free_space.is_short),
        "shoal_disk_refused_total": free_space.refused,
    }
    if free_space.total_bytes is not None:
        reading["shoal_disk_free_bytes"] = max(0, free_space.size_bytes)
        reading["shoal_disk_size_bytes"] = free_space.total_bytes
    return reading


def of_scrub(scrub: ScrubStatistics) -> Reading:
    """Since the agent started."""
    return {
        "shoal_scrub_bytes_total": scrub.bytes_read,
        "shoal_scrub_passes_total": scrub.passes,
        "shoal_scrub_damage_found_total": scrub.ranges_found,
        "shoal_scrub_last_pass_seconds": (scrub.last_pass_ms or 0) / 1_000,
    }


def of_process(process: ProcessStatistics | None) -> Reading:
    """None where the system has no /proc: those families are left out."""
    if process is None:
        return {}
    return {
        "process_cpu_seconds_total": process.cpu_seconds,
        "process_open_fds": process.open_fds,
        "process_max_fds": process.max_fds,
        "process_resident_memory_bytes": process.resident_bytes,
        "process_virtual_memory_bytes": process.virtual_bytes,
        "process_start_time_seconds": process.start_time_seconds,
    }


async def of_replicas(
    host: Host, topic_name: Callable[[GroupId], str | None], *, partitions: bool
) -> Reading:
    """Of those that are here when it begins, and still are when it gets to them. `topic_name`: None for one
    that the catalog does not know."""
    tally = ReplicaTally(topic_name, partitions=partitions)
    async for replica in by_turns(host.open_replicas(), REPLICAS_PER_TURN):
        if host.open_replica(replica.group) is replica:
            tally.add(status_of(replica), _lags(replica))
            if partitions:
                tally.add_groups(replica.group, await _groups_led(host, replica))
    async for group in by_turns(host.stopped_groups(), REPLICAS_PER_TURN):
        if host.open_replica(group) is None and host.has(group):
            tally.add(host.status(group), {})
    return tally.reading()


async def _groups_led(host: Host, replica: Replica) -> list[tuple[str, GroupNumbers, int]]:
    """Of a leader whose log has consumer groups: their names, numbers, and lags in milliseconds."""
    if not replica.is_leader or not isinstance(replica.state.fold, GroupFold):
        return []
    found: list[tuple[str, GroupNumbers, int]] = []
    with suppress(ShoalError):  # it has just stopped to serve, or its group ended, which others tell
        keeper = host.keeper(replica.group)
        for plan, numbers in keeper.numbers_of_all():
            found.append((plan.name, numbers, await keeper.lag_ms(plan.key) if numbers.lag else 0))
    return found


def _lags(replica: Replica) -> Mapping[str, int]:
    """Of a leader: how many entries each follower lacks, by its agent."""
    if not replica.is_leader:
        return {}
    core, lags = replica.core, {}
    for replica_id, match_index in core.match_indexes.items():
        follower = core.configuration.find(replica_id)
        if follower is not None:
            lags[follower.agent_id] = core.last_index - match_index
    return lags


class ReplicaTally:
    """Adds up what replicas say of themselves; with `partitions` it keeps what each says, too."""

    def __init__(self, topic_name: Callable[[GroupId], str | None], *, partitions: bool) -> None:
        self._topic_name = topic_name
        self._partitions = partitions
        self._roles = Counter[str]()
        self._states = Counter[ServingState]()
        self._size_bytes = 0
        self._damaged_ranges = 0
        self._lags: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._series: dict[str, dict[Labels, Number]] = {}
        if partitions:
            names = (
                *OF_PARTITION,
                "shoal_partition_follower_lag_entries",
                *OF_GROUP,
                "shoal_group_lag_seconds",
            )
            self._series = {name: {} for name in names}

    def add(self, status: ReplicaStatus, lags: Mapping[str, int]) -> None:
        """`lags`: entries that each follower lacks, by its agent's id."""
        if status.state is ServingState.ACTIVE:
            self._roles[ROLES[status.role.name]] += 1
        else:
            self._states[status.state] += 1
        self._size_bytes += status.size_bytes
        self._damaged_ranges += len(status.damaged_ranges)
        for follower, lag in lags.items():
            self._lags[follower] = max(lag, self._lags.get(follower, 0))
        if not self._partitions or (topic := self._topic_name(status.group)) is None:
            return
        labels, series = (topic, str(status.group.partition)), self._series
        for name, value in OF_PARTITION.items():
            series[name][labels] = value(status)
        for follower, lag in lags.items():
            series["shoal_partition_follower_lag_entries"][*labels, self._name(follower)] = lag

    def add_groups(self, group: GroupId, numbers: Iterable[tuple[str, GroupNumbers, int]]) -> None:
        """`numbers`: of the consumer groups that a replica leads, with their names and lags in
        milliseconds."""
        if (topic := self._topic_name(group)) is not None:
            for name, found, lag_ms in numbers:
                labels = (topic, str(group.partition), name)
                for series, value in OF_GROUP.items():
                    self._series[series][labels] = value(found)
                self._series["shoal_group_lag_seconds"][labels] = lag_ms / 1_000

    def _name(self, agent_id: str) -> str:
        """Looked up once: a thousand partitions have the same few followers."""
        name = self._names.get(agent_id)
        if name is None:
            name = self._names[agent_id] = agent_name(agent_id)
        return name

    def reading(self) -> Reading:
        """All of it."""
        return {
            "shoal_replicas": {(role,): self._roles[role] for role in dict.fromkeys(ROLES.values())},
            "shoal_replicas_out_of_service": {(state,): self._states[state] for state in OUT_OF_SERVICE},
            "shoal_log_size_bytes": self._size_bytes,
            "shoal_damaged_ranges": self._damaged_ranges,
            "shoal_follower_lag_entries": {
                (self._name(follower),): lag for follower, lag in self._lags.items()
            },
            **self._series,
        }
