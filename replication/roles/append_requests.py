"""The two kinds of AppendRequest a leader sends.

Law of this file: from the log and one follower's progress to a message. Nothing is changed or counted here.
"""

from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.messages import MAX_CONFIGURATIONS, AppendRequest
from shoal.replication.roles.progress import Progress, ProgressState
from shoal.replication.roles.transitions import RaftState


def entries_request(
    state: RaftState, receiver: ReplicaId, progress: Progress, read_token: int
) -> AppendRequest | None:
    """The next entries for a follower, as many as fit; None if they, or the one before them, are trimmed
    here."""
    log = state.log
    previous_index = LogIndex(progress.next_index - 1)
    previous_term = log.term_at(previous_index)
    if previous_term is None or progress.next_index < log.first_index:
        return None
    limit = progress.append_limit
    if progress.state is ProgressState.REPLICATE:
        limit = min(limit, state.config.max_inflight_entries - (previous_index - progress.match_index))
    last = log.last_index
    if last > previous_index + limit:
        last = LogIndex(previous_index + limit)
    inside: tuple[Configuration, ...] = ()
    if state.configurations[-1].index > previous_index:
        named = [item for item in state.configurations if previous_index < item.index <= last]
        if len(named) > MAX_CONFIGURATIONS:
            last = LogIndex(named[MAX_CONFIGURATIONS].index - 1)
        inside = tuple(named[:MAX_CONFIGURATIONS])
    return AppendRequest(
        state.replica_id,
        receiver,
        state.term,
        previous_index,
        previous_term,
        log.runs(progress.next_index, last),
        state.commit_index,
        False,
        inside,
        read_token,
    )


def heartbeat_request(
    state: RaftState, receiver: ReplicaId, progress: Progress, read_token: int, *, quiet: bool
) -> AppendRequest:
    """At match_index, which the follower cannot refuse: entries sent ahead may still be on their way.

    When a probe has no entry left to ask with, the heartbeat asks whether the logs are equal to their end.
    """
    has_nothing_to_send = progress.next_index > state.log.last_index
    if progress.state is ProgressState.PROBE and has_nothing_to_send:
        previous_index = state.log.last_index
    else:
        previous_index = progress.match_index
    previous_term = state.log.term_at(previous_index)
    if previous_term is None:
        previous_index, previous_term = LogIndex(0), Term(0)
    return AppendRequest(
        sender=state.replica_id,
        receiver=receiver,
        term=state.term,
        previous_index=previous_index,
        previous_term=previous_term,
        runs=(),
        commit_index=state.commit_index,
        quiet=quiet,
        read_token=read_token,
    )
