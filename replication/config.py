"""The knobs of one Raft group, and how they must relate.

Law of this file: plain values in milliseconds and counts; every cross-field rule stands in `validate`.
"""

from dataclasses import dataclass

from shoal.replication.errors import ConfigError
from shoal.replication.messages import MAX_RUNS


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One value for a whole agent; all groups share it.

    heartbeat_interval_ms: shorter notices loss sooner and costs more frames. The hosts put the heartbeats of
    all
        groups between two agents into one frame, so that the cost is per pair of agents.
    election_timeout_ms: the least silence after which a follower campaigns; each wait is drawn from [t, 2t).
        Shorter fails over sooner; too short, and a slow disk or a paused process is taken for a death.
    max_entries_per_append: entries named by one AppendRequest.
    max_append_bytes: read by the driver only, which cuts a request at this size (the core sees no payloads).
    max_inflight_appends, max_inflight_entries: requests and entries sent to one follower and not yet
    acknowledged.
        At 64 requests and a round trip of 1 ms the pipeline holds 64,000 requests a second; the bound is what
        a follower that stopped answering can hold in the leader's memory and links.
    max_uncommitted_entries: proposals beyond it are refused (Overloaded): a leader without a majority must
    not
        fill its disk.
    max_pending_reads: read indexes waiting for their heartbeat round.
    retry_after_ms: an append without any progress for so long is sent again.
    commit_notice_ms: an advanced commit index reaches followers within this time even when no entry follows;
        0 tells them at once, at the price of one more message per commit.
    spare_delay_ms: how long followers that no majority needs may wait for new entries (thrifty.py). 0 sends
        everything to all followers at once, and so does a group whose voters have several failure domains. A
        leader whose prompt followers fail is slower by as much, once.
    quiet_after_ms: idle time after which a group stops its heartbeats (safety 25); None never. The default is
        the shortest that is allowed: an event that wakes a thousand groups at once wakes them for so long,
        and each heartbeat of each group is work for both sides.
    sync_stall_ms: a leader whose own sync takes longer hands over (safety 26); None never.
    """

    heartbeat_interval_ms: int = 100
    election_timeout_ms: int = 600
    max_entries_per_append: int = 256
    max_append_bytes: int = 1 << 20
    max_inflight_appends: int = 64
    max_inflight_entries: int = 4096
    max_uncommitted_entries: int = 4096
    max_pending_reads: int = 4096
    retry_after_ms: int = 300
    commit_notice_ms: int = 10
    spare_delay_ms: int = 0
    quiet_after_ms: int | None = 600
    sync_stall_ms: int | None = 1200
    check_quorum: bool = True
    pre_vote: bool = True

    def validate(self) -> None:
        """Raise ConfigError naming the first rule that does not hold."""
        positive = (
            "heartbeat_interval_ms",
            "max_entries_per_append",
            "max_append_bytes",
            "max_inflight_appends",
            "max_uncommitted_entries",
            "max_pending_reads",
        )
        for name in positive:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        rules = (
            # A follower must survive the loss of one heartbeat and still hear the next in time.
            (
                self.election_timeout_ms >= 3 * self.heartbeat_interval_ms,
                "election timeout below three heartbeats",
            ),
            (
                self.max_inflight_entries >= self.max_entries_per_append,
                "the flight is smaller than one append",
            ),
            (self.max_entries_per_append <= MAX_RUNS, "a request could not name that many entries"),
            (self.retry_after_ms >= self.heartbeat_interval_ms, "retries are looked for at heartbeats only"),
            (
                0 <= self.commit_notice_ms <= self.heartbeat_interval_ms,
                "heartbeats carry the commit index anyway",
            ),
            (
                0 <= self.spare_delay_ms <= self.heartbeat_interval_ms,
                "a follower that is spared is behind for less than a heartbeat",
            ),
            (
                self.quiet_after_ms is None or self.quiet_after_ms >= self.election_timeout_ms,
                "a group must be led for an election timeout before it goes quiet",
            ),
            (
                self.sync_stall_ms is None or self.sync_stall_ms >= self.election_timeout_ms,
                "handing over takes an election timeout itself",
            ),
        )
        for holds, rule in rules:
            if not holds:
                raise ConfigError(rule)
