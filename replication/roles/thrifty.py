"""Which followers may wait a moment for new entries: those whose acknowledgement no commit needs.

Law of this file: it says which followers to spare and until when; progress.py and leader.py send. A leader
that sends each entry to just enough followers for a majority saves the work of the others ("thrifty": Moraru,
Andersen and Kaminsky, "There is more consensus in egalitarian parliaments", SOSP 2013, section 4.4); those
get everything together, spare_delay_ms after the first entry that they were spared. If it is not committed by
then, the prompt ones are slow: for a while all followers get everything at once, and then the prompt ones are
chosen anew. The while doubles up to an election timeout as long as that goes wrong again. What counts as
committed has nothing to do with any of this.

Only a group whose voters share one failure domain does so. There the followers' work competes with the
leader's for one machine. Between machines it would bring nothing, and the third copy would be late.

Invariant: while an entry is withheld from a follower, deadline_ms is set.
"""

from collections.abc import Mapping

from shoal.format.batch import LogIndex
from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import ReplicaId
from shoal.replication.roles.progress import Progress, ProgressState
from shoal.replication.state.quorum import majority

FIRST_PAUSE_DELAYS = 4
"""After a prompt follower has failed no follower is spared for so many times spare_delay_ms, at first."""


class Spares:
    """prompt: the followers that get entries at once; None: all of them."""

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.prompt: frozenset[ReplicaId] | None = None
        self.deadline_ms: int | None = None
        self._withheld_index = LogIndex(
            0
        )  # the first entry withheld from a follower, while deadline_ms is set
        self._chosen_ms = 0
        self._pause_ms = 0
        self._resume_ms = 0

    def may_wait(self, receiver: ReplicaId, progress: Progress, last_index: LogIndex, now_ms: int) -> bool:
        """Whether the entries up to last_index need not go to this follower yet. It is counted as spared
        then."""
        if self.prompt is None or receiver in self.prompt:
            return False
        behind = last_index - progress.match_index
        if progress.state is not ProgressState.REPLICATE or behind >= self._config.max_entries_per_append:
            return False  # it has to catch up
        if self.deadline_ms is None:
            self.deadline_ms = now_ms + self._config.spare_delay_ms
            self._withheld_index = progress.next_index
        return True

    def time_is_up(self, commit_index: LogIndex, now_ms: int) -> None:
        """The deadline has passed: spared followers get their entries now."""
        self.deadline_ms = None
        if commit_index >= self._withheld_index or self.prompt is None:
            return
        timeout_ms = self._config.election_timeout_ms
        if now_ms - self._chosen_ms < timeout_ms:
            self._pause_ms = min(2 * self._pause_ms, timeout_ms)
        else:
            self._pause_ms = 0
        self._pause_ms = self._pause_ms or FIRST_PAUSE_DELAYS * self._config.spare_delay_ms
        self._resume_ms = now_ms + self._pause_ms
        self.prompt = None

    def spare_nobody(self) -> None:
        """Spare no follower until the next commit shows which are prompt: the group has changed."""
        self.prompt = None

    def committed(
        self,
        commit_index: LogIndex,
        voters: tuple[ReplicaId, ...],
        progress: Mapping[ReplicaId, Progress],
        now_ms: int,
    ) -> None:
        """An entry was committed: followers that have acknowledged it by now are prompt."""
        if self.prompt is not None or not self._config.spare_delay_ms or now_ms < self._resume_ms:
            return
        needed = majority(len(voters)) - (len(voters) - sum(voter in progress for voter in voters))
        quickest = sorted(
            (voter for voter in voters if voter in progress and progress[voter].match_index >= commit_index),
            key=lambda voter: (-progress[voter].match_index, voter),
        )
        if len(quickest) >= needed:
            self.prompt = frozenset(quickest[:needed])
            self._chosen_ms = now_ms
