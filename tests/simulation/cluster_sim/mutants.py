"""Deliberate faults in the product around the Raft core, each of which the simulation must notice.

Law of this file: a mutant replaces a few functions for one run; its knobs bring about what it needs, and say
with which seed to begin. `python -m cluster_sim.mutants` runs them all, each seed in a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from memory_disk import MemoryDisk, MemoryFile

from cluster_sim.invariants import InvariantViolation
from cluster_sim.knobs import Knobs
from cluster_sim.level_mutants import (
    forget_the_level_before_a_recovery,
    raise_without_the_failed,
    start_above_the_own_levels,
)
from cluster_sim.mutant_runs import run
from cluster_sim.queue_mutants import (
    answer_groups_before_the_commit,
    answer_without_asking,
    begin_without_leases,
    count_entries_that_were_cut,
    count_no_attempt_of_a_nack,
    forget_requests,
    forget_requests_at_a_checkpoint,
    forget_who_is_there,
    give_more_than_is_wanted,
    keep_groups_as_they_were_before_a_cut,
    let_everybody_own,
    let_sessions_last,
    make_an_entry_a_turn,
    move_the_floor_over_gaps,
    never_end_a_lease,
    never_skip,
    number_answers_by_their_entry,
    pass_over_what_waits,
    redrive_from_the_first_letter,
    repeat_a_part_of_an_answer,
    seek_without_forgetting,
    take_older_receipts,
    take_receipts_of_before_a_seek,
    unlock_a_key_at_a_nack,
    write_a_letter_for_each_try,
)
from cluster_sim.security_mutants import (
    depose_the_last_administrator,
    judge_by_the_state_before_a_crash,
    leave_changes_to_the_leader,
    lose_a_revocation_in_a_copy,
    remember_verdicts_too_long,
    tell_of_a_change_as_if_alone,
)
from cluster_sim.simulation import ClusterSimulation
from cluster_sim.table_mutants import (
    drop_from_memory_what_came_meanwhile,
    forget_ends_of_rows_in_runs,
    get_from_a_view_that_lags,
    get_without_asking,
    judge_before_the_sequence,
    judge_by_what_is_committed,
    keep_the_oldest_in_runs,
    look_into_the_oldest_run_first,
    refuse_before_the_commit,
    scan_memory_later_than_runs,
    skip_a_change_at_a_resume,
    tell_a_later_cut,
    trim_rows_before_runs_are_saved,
)
from cluster_sim.timer_mutants import (
    believe_every_chunk,
    drop_a_row_at_a_merge,
    give_before_they_are_due,
    sort_by_the_producers_clock,
    trim_before_runs_are_saved,
)
from cluster_sim.topic_mutants import (
    alter_all_but_the_factor,
    alter_whatever_the_settings_are,
    forget_removed_replicas,
    give_birth_on_the_dead,
    lower_by_one_too_many,
    never_bear_again,
    remove_before_adding,
    serve_before_the_birth_is_known,
    settle_for_the_factor_before,
    take_absence_for_deletion,
)
from shoal.agent.durable.identity import HardStateFile
from shoal.agent.host.host import Host
from shoal.agent.host.peer_liveness import PeerLiveness
from shoal.agent.partition import pending as waiting
from shoal.agent.partition.clock_skew import PeerClocks
from shoal.agent.partition.disk_queue import DiskOrder
from shoal.agent.partition.pending import Waiter, WaitQueue
from shoal.agent.partition.reader import Reader
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.state import log_state as partition
from shoal.agent.partition.state.idempotence import PRODUCER_BYTES, ProducerTable
from shoal.agent.partition.state.log_state import PartitionState
from shoal.agent.partition.state.log_time import LogTime
from shoal.agent.peers.dialler import Dialler
from shoal.agent.peers.frames import encode_stopped
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex
from shoal.replication.interfaces import HardState
from shoal.replication.roles.read_index import ReadQueue
from shoal.segment_store.errors import SyncFailed
from shoal.segment_store.log.writer import Writer

Patch = tuple[Any, str, Any]
SEEDS_MAX = 16


def ack_before_sync() -> list[Patch]:
    """Entries count as durable as soon as they are handed to the disk."""
    write = DiskOrder._write

    def mutated(self: DiskOrder, item: Any) -> None:
        write(self, item)
        if not item.done:
            self._done(item)

    return [(DiskOrder, "_write", mutated)]


def vote_before_sync() -> list[Patch]:
    """Term and vote are on their way to the disk when the answer leaves."""
    save = HardStateFile.save

    async def mutated(self: HardStateFile, *arguments: Any) -> None:
        asyncio.ensure_future(save(self, *arguments))  # noqa: RUF006 -- nobody waits: that is the fault

    return [(HardStateFile, "save", mutated)]


def forget_the_vote() -> list[Patch]:
    """The term is stored, the vote is not."""
    save = HardStateFile.save

    async def mutated(self: HardStateFile, group: Any, replica_id: Any, state: HardState) -> None:
        await save(self, group, replica_id, replace(state, vote=None))

    return [(HardStateFile, "save", mutated)]


def no_dedupe_after_a_checkpoint() -> list[Patch]:
    """A segment's checkpoint is read without its producers, and an unknown producer is believed."""

    def restore(self: ProducerTable, data: bytes) -> None:
        self._entries = {}
        self._undo.clear()

    return [(ProducerTable, "restore", restore), (ProducerTable, "_check_first", lambda *_: None)]


def no_dedupe() -> list[Patch]:
    """A repeated sequence is stored again."""
    return [(ProducerTable, "check", lambda *_, **__: None)]


def serve_uncommitted() -> list[Patch]:
    """Readers get what the log has, committed or not."""
    return [
        (PartitionState, "high_watermark", property(lambda self: self.tail.end_offset)),
        (Replica, "readable_index", property(lambda self: self.log.last_index)),
    ]


def read_without_asking() -> list[Patch]:
    """A leader states where the log ends without asking whether it still leads."""

    async def confirm(self: Reader) -> Any:
        self._replica.require_leader()
        return self._replica.core.commit_index

    return [(Reader, "confirm", confirm)]


def answer_at_the_own_sync() -> list[Patch]:
    """acks=all is answered as acks=leader."""
    add = WaitQueue.add
    return [(WaitQueue, "add", lambda self, waiter: add(self, waiter._replace(synced_only=True)))]


def call_everything_definite() -> list[Patch]:
    """A timeout is told as if nothing had happened."""

    def refuse(waiter: Waiter, code: str, detail: str) -> None:
        if not waiter.answer.done():
            waiter.answer.set_exception(ShoalError(code, detail, definite=True))

    return [(waiting, "_refuse", refuse)]


def believe_failed_syncs() -> list[Patch]:
    """A sync that failed is taken for one that succeeded."""
    sync = MemoryFile.sync

    async def mutated(self: MemoryFile) -> None:
        try:
            await sync(self)
        except SyncFailed:
            return

    return [(MemoryFile, "sync", mutated)]


def never_sync_names() -> list[Patch]:
    """New files are synced, the directories that name them are not."""

    async def sync_directory(self: MemoryDisk, path: str) -> None:
        await self.begin("list", path)

    return [(MemoryDisk, "sync_directory", sync_directory)]


def never_dial_again() -> list[Patch]:
    """A link that broke stays broken."""

    async def keep_dialled(self: Dialler, peer: Any, kind: Any) -> None:
        while not await self.dial(peer, kind):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1e9)

    return [(Dialler, "keep_dialled", keep_dialled)]


def forget_young_producers() -> list[Patch]:
    """A full table makes room by forgetting whoever was silent longest, however short that is."""

    def forget(self: ProducerTable, index: Any, elapsed_us: int) -> None:
        while self._entries and self.size_bytes >= self._max_bytes:
            self._pop(next(iter(self._entries)))

    small = {**(ProducerTable.__init__.__kwdefaults__ or {}), "max_bytes": PRODUCER_BYTES}
    return [
        (ProducerTable.__init__, "__kwdefaults__", small),
        (ProducerTable, "_has_room", lambda *_: True),
        (ProducerTable, "_forget", forget),
    ]


def forget_what_was_before_a_cut() -> list[Patch]:
    """When a log's end is cut, producers who appended there are forgotten whole."""
    undo_from = ProducerTable.undo_from

    def mutated(self: ProducerTable, from_index: Any) -> None:
        before = dict(self)
        undo_from(self, from_index)
        for producer_id, known in dict(self).items():
            if known is not before.get(producer_id):
                self._pop(producer_id)

    return [(ProducerTable, "undo_from", mutated)]


def tell_of_a_segment_before_it_is_noted() -> list[Patch]:
    """Its first entry is acknowledged while that is still on its way to the disk."""

    def note(self: DiskOrder, item: Any) -> None:
        self._done(item)
        if item.segments and item.segments[-1] > self._floor:
            self._floor = item.segments[-1]
            asyncio.ensure_future(self._save_floor(self._floor))  # noqa: RUF006 -- nobody waits

    return [(DiskOrder, "_note", note)]


def hint_at_what_is_not_synced() -> list[Patch]:
    """The commit index that is saved is the core's, not what this disk has."""

    async def save_hard_state(self: Host, replica: Replica, state: HardState) -> None:
        await self._stores.hard_states.save(replica.group, replica.replica_id, state)

    return [(Host, "save_hard_state", save_hard_state)]


def stop_without_a_word() -> list[Patch]:
    """A leader whose replica stops tells nobody, and its agent names it to nobody."""
    return [
        (Replica, "say_last_words", lambda _: None),
        (PeerLiveness, "name_stopped", lambda _: encode_stopped([])),
    ]


def trust_the_wall_clock() -> list[Patch]:
    """Records are stamped with whatever the clock says, and never earlier than those before; and producers
    are as old as that makes them."""
    return [
        (partition, "ELAPSED_STEP_US", 2**62),
        (PeerClocks, "now_us", lambda self, _: self._clock.now_us()),
        (LogTime, "stamp", lambda _, previous_us, now_us, now_ms: max(previous_us, now_us)),
    ]


def confirm_reads_by_older_rounds() -> list[Patch]:
    """A heartbeat that left before a read was asked confirms it."""

    def ask(self: ReadQueue, token: int, index: LogIndex | None) -> None:
        if index is None:
            self.early.append(token)
        else:
            self.waiting.append((self.round, token, index))

    return [(ReadQueue, "ask", ask)]


def count_what_is_to_be_cut() -> list[Patch]:
    """A write that succeeds counts whole, though a truncation of what it wrote waits behind it."""
    return [(Writer, "_kept_of", lambda _, index: index)]


@dataclass(frozen=True)
class Mutant:
    """`expected`: the invariants that may notice it."""

    mutate: Callable[[], list[Patch]]
    expected: tuple[str, ...]
    first_seed: int = 0
    knobs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.mutate.__name__


LOSS = (
    "History",
    "StateMachineSafety",
    "LeaderCompleteness",
    "SameCommittedPrefix",
    "NoInternalError",
    "Liveness",
)
SHORT = {
    "safety_ms": 10_000,
    "fault_interval_ms": 500,
    "loss": 0,
    "straggler": 0,
    "partitions": 1,
    "padding": 0,
}
SHORT |= {"rot": False, "draining": False, "topics": False, "joining": False, "retention_bytes": None}
SHORT |= {"replace_after_ms": 300_000, "producer_pause_ms": 20, "segment_bytes": 1 << 20, "delay_ms_max": 20}
SHORT |= {"arrow": False, "leader_acks": False, "keys": False, "library": False, "sink": False, "split": 0}
SHORT |= {
    "crowd": False,
    "years": False,
    "disaster": False,
    "few_producers": False,
    "visitor": False,
    "births": False,
    "impatient": False,
    "little_memory": False,
    "upgrades": False,
    "alterations": False,
    "groups": (),
    "letters": False,
    "operates": (),
    "timers": False,
    "tables": False,
    "secured": False,
}
ELECTIONS = {"partitions": 6, "quick_restarts": True, "delay_ms_max": 200, "fault_interval_ms": 200}
ELECTIONS |= {"producer_pause_ms": 300, "timers": False}
CALM = {"rot": False, "draining": False, "upgrades": False, "alterations": False, "timers": False}
CALM |= {"tables": False, "secured": False}
BUSY = CALM | {"fault_interval_ms": 500}
REPLACED = CALM | {"nodes": 4, "kills": True, "replace_after_ms": 3_000, "safety_ms": 25_000}

ROLLING = {"segment_bytes": 16_384, "padding": 100, "batch_max": 20, "sync_ms_max": 30}
FEW_LONG_FAULTS = {"fault_interval_ms": 2_500, "safety_ms": 20_000}
LONG_WITH_FAULTS = {"fault_interval_ms": 1_000, "safety_ms": 20_000}
SLOW_PRODUCERS = {"producer_pause_ms": 1_000, "partitions": 6, "fault_interval_ms": 300}


def _only(*faults: str, **knobs: Any) -> dict[str, Any]:
    """A short run with these faults, and no others."""
    return SHORT | {"only": faults} | knobs


SHARED = _only("cut_leader", "kill_leader", "mute_leader", "late_leader", groups=("shared",), nodes=3)
EXCLUSIVE = SHARED | {"groups": ("exclusive",)}
LETTERED = SHARED | {"letters": True, "safety_ms": 20_000}
SOUGHT = SHARED | {"operates": ("seek",)}
REDRIVEN = LETTERED | {"operates": ("redrive",)}
KEYED = SHARED | {"groups": ("key-ordered",)}
TIMERS = _only("kill_one", "kill_leader", timers=True, nodes=3, **ROLLING)
TABLES = _only("cut_leader", "kill_leader", "mute_leader", "late_leader", tables=True, nodes=3)
ROWS_IN_RUNS = TABLES | {"only": ("kill_one", "kill_leader"), "quick_restarts": True} | ROLLING
ROWS_IN_RUNS |= {"padding": 0, "producer_pause_ms": 60}
SECURED = _only("kill_one", "kill_leader", secured=True, nodes=3, safety_ms=8_000)
UPGRADES = _only("change_version", nodes=3, upgrades=True, **LONG_WITH_FAULTS)

MUTANTS = (
    Mutant(
        ack_before_sync,
        ("AcknowledgedIsSynced", *LOSS),
        knobs=_only("power_all", "power_leader", sync_ms_max=300),
    ),
    Mutant(
        vote_before_sync,
        ("OneVotePerTerm", "ElectionSafety"),
        first_seed=11,
        knobs=ELECTIONS
        | BUSY
        | {"fault_interval_ms": 200, "power": True, "sync_ms_max": 600, "safety_ms": 20_000, "loss": 0}
        | {"joining": False, "topics": False},
    ),
    Mutant(
        forget_the_vote,
        ("OneVotePerTerm", "ElectionSafety"),
        first_seed=18,
        knobs=_only("kill_one", "kill_leader", **ELECTIONS),
    ),
    Mutant(
        no_dedupe_after_a_checkpoint,
        ("History",),
        first_seed=8,
        knobs=_only("kill_all", "kill_leader", "mute_leader", **ROLLING, **LONG_WITH_FAULTS),
    ),
    Mutant(no_dedupe, ("History",), first_seed=1, knobs=_only("kill_leader", "cut_leader", "mute_leader")),
    Mutant(
        serve_uncommitted,
        ("History",),
        first_seed=1,
        knobs=_only("cut_leader", "mute_leader", "power_leader"),
    ),
    Mutant(
        read_without_asking,
        ("History",),
        first_seed=6,
        knobs=_only("cut_leader", "mute_leader", "pause_leader", nodes=3, partitions=3, impatient=True),
    ),
    Mutant(
        answer_at_the_own_sync, LOSS, first_seed=1, knobs=_only("cut_leader", "kill_leader", "mute_leader")
    ),
    Mutant(
        call_everything_definite,
        ("History",),
        first_seed=2,
        knobs=_only("cut_leader", "late_leader", "mute_leader", nodes=3, sync_ms_max=30),
    ),
    Mutant(forget_removed_replicas, ("BornOnce", "RemovedStaysRemoved"), first_seed=12, knobs=REPLACED),
    Mutant(remove_before_adding, ("NeverFewerVoters",), first_seed=5, knobs=REPLACED),
    Mutant(
        believe_failed_syncs,
        ("AcknowledgedIsSynced", *LOSS),
        first_seed=1,
        knobs=_only("fail_sync", "fail_sync", "fail_sync", "power_all"),
    ),
    Mutant(
        never_sync_names,
        ("AcknowledgedIsSynced", "BornOnce", "OneVotePerTerm", *LOSS),
        knobs=BUSY | {"power": True, "sync_ms_max": 30},
    ),
    Mutant(forget_young_producers, ("History", "Liveness"), knobs=_only("kill_leader", "cut_leader")),
    Mutant(
        forget_what_was_before_a_cut,
        ("SameTables", "History", "Liveness"),
        first_seed=103,
        knobs=_only("cut_leader", "overload_leader", **SLOW_PRODUCERS),
    ),
    Mutant(tell_of_a_segment_before_it_is_noted, ("FloorIsKnown",), knobs=_only("kill_leader", **ROLLING)),
    Mutant(
        hint_at_what_is_not_synced,
        ("HintIsSynced",),
        knobs=_only("power_one", "slow_disk", **ROLLING),
    ),
    Mutant(
        stop_without_a_word,
        ("Liveness",),
        first_seed=1,
        knobs=_only("stop_replica", nodes=3, fault_interval_ms=2_500),
    ),
    Mutant(take_absence_for_deletion, ("AbsenceIsNoDeletion",), knobs=SHORT | {"disaster": True}),
    Mutant(
        give_birth_on_the_dead,
        ("BornAmongTheLiving",),
        first_seed=1,
        knobs=SHORT | {"births": True, "loopback": False},
    ),
    Mutant(
        never_bear_again,
        ("BornAmongTheLiving",),
        first_seed=3,
        knobs=SHORT | {"births": True, "loopback": False},
    ),
    Mutant(serve_before_the_birth_is_known, ("OneBirthServes",), knobs=SHORT | {"births": True}),
    Mutant(
        trust_the_wall_clock,
        ("Liveness", "History"),
        first_seed=2,
        knobs=_only("jump_clock", "jump_clock", "kill_leader", years=True),
    ),
    Mutant(
        confirm_reads_by_older_rounds,
        ("History",),
        first_seed=1,
        knobs=_only("late_leader", nodes=3, partitions=3, impatient=True, **FEW_LONG_FAULTS),
    ),
    Mutant(
        count_what_is_to_be_cut,
        ("AcknowledgedIsSynced", "CutIsCut"),
        first_seed=2,
        knobs=_only("overload_leader"),
    ),
    Mutant(
        alter_whatever_the_settings_are,
        ("AlterationsAreKept",),
        first_seed=1,
        knobs=_only("kill_one", "cut_some", alterations=True, **FEW_LONG_FAULTS),
    ),
    Mutant(alter_all_but_the_factor, ("AlterationsAreKept",), knobs=_only("kill_one", alterations=True)),
    Mutant(
        settle_for_the_factor_before,
        ("Liveness",),
        knobs=_only("reset_streams", nodes=4, alterations=True, **FEW_LONG_FAULTS),
    ),
    Mutant(
        lower_by_one_too_many,
        ("NeverFewerVoters", "Liveness"),
        knobs=_only("kill_one", nodes=4, alterations=True),
    ),
    Mutant(never_dial_again, ("Liveness",), knobs=CALM | {"kills": True}),
    Mutant(raise_without_the_failed, ("RaisedTooEarly",), first_seed=8, knobs=UPGRADES),
    Mutant(start_above_the_own_levels, ("LevelUnderstood",), first_seed=2, knobs=UPGRADES),
    Mutant(forget_the_level_before_a_recovery, ("Disaster",), knobs=SHORT | {"disaster": True}),
    Mutant(answer_groups_before_the_commit, ("GroupHistory",), first_seed=10, knobs=SHARED),
    Mutant(
        forget_requests_at_a_checkpoint,
        ("GroupHistory", "SameGroups"),
        first_seed=1,
        knobs=SHARED | ROLLING | {"only": ("kill_one", "kill_leader")},
    ),
    Mutant(
        answer_without_asking,
        ("GroupHistory",),
        first_seed=212,
        knobs=SHARED
        | FEW_LONG_FAULTS
        | {
            "only": ("late_leader",),
            "producer_pause_ms": 500,
            "groups": ("shared", "exclusive", "key-ordered"),
        },
    ),
    Mutant(take_older_receipts, ("GroupHistory",), first_seed=27, knobs=SHARED),
    Mutant(unlock_a_key_at_a_nack, ("GroupHistory", "LeaderIsSound"), first_seed=2, knobs=KEYED),
    Mutant(move_the_floor_over_gaps, ("GroupHistory", "GroupsAreSound", "LeaderIsSound"), knobs=SHARED),
    Mutant(forget_requests, ("GroupHistory",), knobs=SHARED),
    Mutant(
        keep_groups_as_they_were_before_a_cut,
        ("SameGroups", "GroupsAreSound", "GroupHistory", "NoInternalError"),
        first_seed=10,
        knobs=SHARED,
    ),
    Mutant(begin_without_leases, ("GroupHistory",), first_seed=11, knobs=SHARED),
    Mutant(let_everybody_own, ("GroupHistory",), knobs=EXCLUSIVE),
    Mutant(
        forget_who_is_there,
        ("GroupHistory",),
        knobs=EXCLUSIVE | LONG_WITH_FAULTS | {"producer_pause_ms": 30, "only": ("slow_disk",)},
    ),
    Mutant(let_sessions_last, ("GroupHistory",), knobs=EXCLUSIVE),
    Mutant(pass_over_what_waits, ("GroupHistory",), first_seed=26, knobs=EXCLUSIVE),
    Mutant(give_more_than_is_wanted, ("GroupHistory",), knobs=SHARED),
    Mutant(
        never_skip,
        ("GroupHistory", "QueuesDrain"),
        first_seed=64,
        knobs=SHARED | ROLLING | {"retention_bytes": 65_536},
    ),
    Mutant(write_a_letter_for_each_try, ("GroupHistory",), first_seed=5, knobs=LETTERED),
    Mutant(take_receipts_of_before_a_seek, ("GroupHistory",), first_seed=27, knobs=SOUGHT),
    Mutant(
        seek_without_forgetting,
        ("GroupHistory", "GroupsAreSound", "LeaderIsSound"),
        first_seed=7,
        knobs=SOUGHT,
    ),
    Mutant(redrive_from_the_first_letter, ("GroupHistory",), first_seed=36, knobs=REDRIVEN),
    Mutant(make_an_entry_a_turn, ("OneEntryPerCycle",), knobs=SHARED | {"sync_ms_max": 30}),
    Mutant(never_end_a_lease, ("QueuesDrain",), first_seed=4, knobs=SHARED | {"safety_ms": 5_000}),
    Mutant(
        count_entries_that_were_cut, ("CountedOnce",), first_seed=1, knobs=SHARED | {"only": ("cut_leader",)}
    ),
    Mutant(count_no_attempt_of_a_nack, ("GroupHistory",), knobs=SHARED),
    Mutant(number_answers_by_their_entry, ("GroupHistory", "LeaderIsSound"), first_seed=46, knobs=SHARED),
    Mutant(repeat_a_part_of_an_answer, ("GroupHistory",), first_seed=7, knobs=SHARED),
    Mutant(give_before_they_are_due, ("GroupHistory",), knobs=TIMERS),
    Mutant(
        sort_by_the_producers_clock,
        ("GroupHistory", "QueuesDrain", "ViewHasAll"),
        first_seed=21,
        knobs=TIMERS | {"safety_ms": 6_000},
    ),
    Mutant(trim_before_runs_are_saved, ("ViewBehindLog",), knobs=TIMERS),
    Mutant(
        believe_every_chunk,
        ("ViewHasAll", "GroupHistory", "NoInternalError"),
        first_seed=18,
        knobs=TIMERS | {"only": ("rot_run", "rot_run", "kill_one"), "rot": True, "safety_ms": 5_000},
    ),
    Mutant(drop_a_row_at_a_merge, ("ViewHasAll", "GroupHistory", "QueuesDrain"), first_seed=3, knobs=TIMERS),
    Mutant(refuse_before_the_commit, ("TableHistory",), knobs=TABLES),
    Mutant(judge_by_what_is_committed, ("TableHistory",), first_seed=4, knobs=TABLES),
    Mutant(judge_before_the_sequence, ("TableHistory",), first_seed=2, knobs=TABLES),
    Mutant(get_without_asking, ("TableHistory",), first_seed=1, knobs=TABLES),
    Mutant(get_from_a_view_that_lags, ("TableHistory",), knobs=TABLES),
    Mutant(skip_a_change_at_a_resume, ("TableHistory",), knobs=TABLES),
    Mutant(keep_the_oldest_in_runs, ("TableHistory",), knobs=ROWS_IN_RUNS),
    Mutant(look_into_the_oldest_run_first, ("TableHistory",), first_seed=1, knobs=ROWS_IN_RUNS),
    Mutant(drop_from_memory_what_came_meanwhile, ("TableHistory",), knobs=ROWS_IN_RUNS),
    Mutant(scan_memory_later_than_runs, ("TableHistory",), knobs=ROWS_IN_RUNS),
    Mutant(tell_a_later_cut, ("TableHistory",), knobs=ROWS_IN_RUNS),
    Mutant(forget_ends_of_rows_in_runs, ("TableHistory",), knobs=ROWS_IN_RUNS),
    Mutant(
        trim_rows_before_runs_are_saved,
        ("ViewBehindLog",),
        knobs=ROWS_IN_RUNS | {"retention_bytes": 16_384, "padding": 600, "producer_pause_ms": 10},
    ),
    Mutant(
        remember_verdicts_too_long,
        ("EndedIsRefused", "AnswersFollow", "RevokedInTime"),
        knobs=SECURED | {"only": ("reset_streams",), "safety_ms": 1_000},
    ),
    Mutant(
        judge_by_the_state_before_a_crash,
        ("EndedIsRefused",),
        first_seed=58,
        knobs=SECURED | {"only": ("kill_one",), **FEW_LONG_FAULTS},
    ),
    Mutant(lose_a_revocation_in_a_copy, ("SameVerdict", "EndedStaysEnded", "NoInternalError"), knobs=SECURED),
    Mutant(
        depose_the_last_administrator,
        ("AdministratorStays",),
        knobs=SECURED | {"only": ("reset_streams",), "safety_ms": 20_000},
    ),
    Mutant(
        leave_changes_to_the_leader,
        ("ChangesAreTold",),
        knobs=SECURED | {"only": ("cut_leader", "mute_leader"), "safety_ms": 12_000},
    ),
    Mutant(tell_of_a_change_as_if_alone, ("ChangesAreTold",), knobs=SECURED),
)


def caught(mutant: Mutant, seed: int, *, control: bool = False) -> str | None:
    """The invariant that noticed, None if none did. In this process. `control`: without the fault."""
    simulation = ClusterSimulation(
        seed, knobs=replace(Knobs.of_seed(seed), **mutant.knobs), patches=[] if control else mutant.mutate()
    )
    simulation.keep()
    try:
        simulation.run()
    except InvariantViolation as error:
        fits = "mutants.py:" not in str(error)  # else the mutant itself fails, and finds nothing
        return f"{error}"[:300] if fits and error.name in mutant.expected else None
    except AssertionError as error:
        return f"AssertionError {error}"[:300]
    return None


def main(arguments: list[str]) -> int:
    """One line for each mutant: its name, the seed that caught it, and what was said. With --control the
    first seed of each is run without the fault: then nothing should be said. A process that died has said
    neither. The exit status is 1 unless all is as it should be. --times: seconds of processor, too."""
    control, times = "--control" in arguments, "--times" in arguments
    names = [name for name in arguments if not name.startswith("--")]
    asked = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    judge, seeds = partial(caught, control=control), 1 if control else SEEDS_MAX
    is_well = True
    for judged in run(asked, judge, seeds=seeds, jobs=len(os.sched_getaffinity(0))):
        is_well &= not judged.death and bool(judged.found) != control
        if judged.death:
            said = f"its process died at seed {judged.seed}: {judged.death}"
        else:
            said = f"seed {judged.seed}: {judged.found}" if judged.found else "not caught"
        took = f"{judged.processor_s:.1f} s: " if times else ""
        print(f"{judged.mutant.name}: {took}{said}", flush=True)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
