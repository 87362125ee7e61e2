"""Hosts with real disks and links: one alone, three together, failures, restarts."""

import asyncio
from pathlib import Path

import pytest
from waiting import until

from shoal.agent.fetch import FetchRequest
from shoal.agent.partition.plan import StateMachine
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import Offset, ProducerStamp, producer_id_from_text
from shoal.segment_store.config import LogConfig
from tests.agent.harness import GROUP, Cluster, columns, message, read_values

TINY = LogConfig(segment_bytes=8192, first_allocation_bytes=4096, max_allocation_step_bytes=8192)
ALICE = producer_id_from_text("alice")


async def test_one_voter_leads_appends_and_reads(tmp_path: Path) -> None:
    """Alone it elects itself; offsets are dense; what was acknowledged is read back in order."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        assert await cluster.append("a", "b") == Appended(Offset(0), 2)
        assert await node.host.append(GROUP, Submission.of(columns("c"), timeout_ms=30_000)) == Appended(
            Offset(2), 1
        )
        assert await read_values(node) == ["a", "b", "c"]
        offsets = await node.host.offsets(GROUP)
        assert (offsets.log_start_offset, offsets.high_watermark, offsets.log_end_offset) == (0, 3, 3)
        node.host.replica(GROUP).core.check_invariants()


async def test_three_elect_replicate_and_survive_the_leader(tmp_path: Path) -> None:
    """The leader is killed: another one leads, goes on, and the killed one catches up when it returns."""
    async with Cluster(str(tmp_path), 3) as cluster:
        first = await cluster.leader()
        assert first is cluster.nodes[0]  # the preferred leader of a newborn group
        for number in range(20):
            await cluster.append(f"before-{number}")
        await cluster.stop(first)
        for number in range(20):
            await cluster.append(f"after-{number}")
        second = await cluster.leader()
        assert second is not first
        await cluster.start(first)
        await cluster.append("last")
        expected = [f"before-{n}" for n in range(20)] + [f"after-{n}" for n in range(20)] + ["last"]
        for node in cluster.nodes:
            await until(lambda node=node: node.host.status(GROUP).high_watermark == 41)
            assert await read_values(node, local=True) == expected
            node.host.replica(GROUP).core.check_invariants()


async def test_all_stop_and_all_return(tmp_path: Path) -> None:
    """After every agent has stopped, what was acknowledged is there, and the group goes on."""
    async with Cluster(str(tmp_path), 3) as cluster:
        for number in range(5):
            await cluster.append(f"{number}")
        for node in cluster.nodes:
            await cluster.stop(node)
        for node in cluster.nodes:
            await cluster.start(node)
        assert (await cluster.append("5")).base_offset == 5
        assert await read_values(await cluster.leader()) == ["0", "1", "2", "3", "4", "5"]


async def test_segments_roll_with_checkpoints_and_restart_folds_them(tmp_path: Path) -> None:
    """Tiny segments: every one begins with a checkpoint, and a restart remembers producers from the fold."""
    async with Cluster(str(tmp_path), 3, log_config=TINY) as cluster:
        for number in range(60):
            stamp = ProducerStamp(ALICE, 0, number)
            await cluster.append(f"{number}" * 20, producer=stamp)
        leader = await cluster.leader()
        assert len(leader.host.replica(GROUP).log.spans()) > 3
        for node in cluster.nodes:
            await cluster.stop(node)
        for node in cluster.nodes:
            await cluster.start(node)
        repeated = await cluster.append("59" * 20, producer=ProducerStamp(ALICE, 0, 59))
        assert repeated == Appended(Offset(59), 1, duplicate=True)
        with pytest.raises(ShoalError, match="sequence-gap"):
            await cluster.append("x", producer=ProducerStamp(ALICE, 0, 61))
        assert (await cluster.append("60", producer=ProducerStamp(ALICE, 0, 60))).base_offset == 60
        leader = await cluster.leader()
        assert await read_values(leader) == [f"{n}" * 20 for n in range(60)] + ["60"]
        for node in cluster.nodes:
            checkpoint = node.host.replica(GROUP).state.checkpoint()
            assert checkpoint.configuration == cluster.birth


async def test_a_follower_far_behind_catches_up_from_disk(tmp_path: Path) -> None:
    """Entries that have left the leader's memory are read from its segments, many requests long."""
    async with Cluster(str(tmp_path), 3, log_config=TINY) as cluster:
        await cluster.leader()
        behind = cluster.nodes[2]
        await cluster.stop(behind)
        value = "x" * 60_000
        for _ in range(60):
            await cluster.append(value)
        await cluster.start(behind)
        await until(lambda: behind.host.status(GROUP).high_watermark == 60)
        assert await read_values(behind, local=True) == [value] * 60


async def test_producers_duplicates_gaps_epochs(tmp_path: Path) -> None:
    """One sequence is stored once; gaps, unknown producers and old epochs are refused for certain."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()

        async def append(epoch: int, sequence: int, *values: str) -> Appended:
            return await node.host.append(
                GROUP,
                Submission.of(
                    [message(*values)], producer=ProducerStamp(ALICE, epoch, sequence), timeout_ms=30_000
                ),
            )

        with pytest.raises(ShoalError, match="sequence-gap") as refused:
            await append(0, 3, "never")
        assert refused.value.definite
        assert await append(0, 0, "a", "b") == Appended(Offset(0), 2)
        assert await append(0, 1, "c") == Appended(Offset(2), 1)
        assert await append(0, 0, "a", "b") == Appended(Offset(0), 2, duplicate=True)
        with pytest.raises(ShoalError, match="sequence-gap"):
            await append(0, 3, "d")
        assert await append(1, 0, "e") == Appended(Offset(3), 1)
        with pytest.raises(ShoalError, match="producer-fenced"):
            await append(0, 2, "f")
        assert await read_values(node) == ["a", "b", "c", "e"]


async def test_several_batches_of_one_sequence_become_one_entry(tmp_path: Path) -> None:
    """A request with a producer is one entry, whatever number of batches it brought."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        await node.host.offsets(GROUP)  # its own term's first entry is committed
        before = node.host.status(GROUP).commit_index
        batches = [message("a", "b"), message("c"), message("d")]
        producer = ProducerStamp(ALICE, 0, 0)
        assert await node.host.append(
            GROUP, Submission.of(batches, producer=producer, timeout_ms=30_000)
        ) == Appended(Offset(0), 4)
        assert node.host.status(GROUP).commit_index == before + 1
        assert await node.host.append(GROUP, Submission.of(batches, timeout_ms=30_000)) == Appended(
            Offset(4), 4
        )
        assert node.host.status(GROUP).commit_index == before + 4
        assert await read_values(node) == ["a", "b", "c", "d"] * 2


async def test_single_records_are_gathered_into_few_entries(tmp_path: Path) -> None:
    """What is submitted together becomes one batch; each submission learns its own offsets, duplicates
    too."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        await node.host.offsets(GROUP)  # its own term's first entry is committed
        before = node.host.status(GROUP).commit_index
        producers = [producer_id_from_text(f"p{number}") for number in range(10)]

        async def submit(number: int) -> Appended:
            stamp = ProducerStamp(producers[number], 0, 0) if number < 10 else None
            return await node.host.append(
                GROUP, Submission.of(columns(f"{number}"), producer=stamp, timeout_ms=30_000)
            )

        answers = await asyncio.gather(*(submit(number) for number in range(64)))
        assert [answer.base_offset for answer in answers] == list(range(64))
        assert node.host.status(GROUP).commit_index <= before + 2
        again = await submit(7)
        assert again == Appended(Offset(7), 1, duplicate=True)
        assert await read_values(node) == [f"{number}" for number in range(64)]


async def test_sequences_of_one_producer_in_one_turn_keep_their_order(tmp_path: Path) -> None:
    """Pipelined sequences and a repetition that arrive together are each judged after the one before."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()

        async def submit(sequence: int) -> Appended:
            stamp = ProducerStamp(ALICE, 0, sequence)
            return await node.host.append(
                GROUP, Submission.of(columns(f"{sequence}"), producer=stamp, timeout_ms=30_000)
            )

        answers = await asyncio.gather(
            *(submit(sequence) for sequence in (0, 1, 1, 2, 9)), return_exceptions=True
        )
        assert answers[:4] == [
            Appended(Offset(0), 1),
            Appended(Offset(1), 1),
            Appended(Offset(1), 1, duplicate=True),
            Appended(Offset(2), 1),
        ]
        assert isinstance(answers[4], ShoalError)
        assert answers[4].code == "sequence-gap"
        assert await read_values(node) == ["0", "1", "2"]


async def test_a_follower_refuses_with_the_leader(tmp_path: Path) -> None:
    """not-leader names the agent that leads, and certifies that nothing happened."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        for call in (
            follower.host.append(GROUP, Submission.of([message("x")], timeout_ms=500)),
            follower.host.append(GROUP, Submission.of(columns("x"), timeout_ms=500)),
            follower.host.reader(GROUP).read(FetchRequest(Offset(0), max_bytes=1)),
        ):
            with pytest.raises(ShoalError) as refused:
                await call
            assert refused.value.code == "not-leader"
            assert refused.value.definite
            assert refused.value.extra["leader"] == leader.agent_id


async def test_without_a_majority_an_append_times_out_indefinitely(tmp_path: Path) -> None:
    """It may still commit later: the answer says so."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        for node in [node for node in cluster.nodes if node is not leader]:
            await cluster.stop(node)
        with pytest.raises(ShoalError) as refused:
            await leader.host.append(GROUP, Submission.of([message("b")], timeout_ms=150))
        assert refused.value.code in ("timeout", "leadership-lost", "no-leader")
        assert refused.value.code == "no-leader" or not refused.value.definite


async def test_acks_leader_and_none(tmp_path: Path) -> None:
    """acks=leader waits for the local sync, acks=none for nothing; both name provisional offsets."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        synced = Submission.of([message("a")], acks="leader", timeout_ms=30_000)
        assert await node.host.append(GROUP, synced) == Appended(Offset(0), 1)
        assert node.host.replica(GROUP).log.synced_index == node.host.replica(GROUP).log.last_index
        unasked = Submission.of([message("b")], acks="none", timeout_ms=30_000)
        assert await node.host.append(GROUP, unasked) == Appended(Offset(1), 1)
        await until(lambda: node.host.status(GROUP).high_watermark == 2)


async def test_reads_wait_wake_and_state_the_end(tmp_path: Path) -> None:
    """A long poll wakes on commit; an empty one ends in time; beyond the end is an error with the range."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        polling = asyncio.create_task(
            node.host.reader(GROUP).read(FetchRequest(Offset(0), max_bytes=100, wait_ms=120_000))
        )
        await asyncio.sleep(0.02)
        assert not polling.done()
        await cluster.append("a")
        fetch = await asyncio.wait_for(polling, 40)
        assert (fetch.base_offset, fetch.next_offset, fetch.high_watermark) == (0, 1, 1)
        empty = await node.host.reader(GROUP).read(FetchRequest(Offset(1), max_bytes=100, wait_ms=20))
        assert (empty.frames, empty.next_offset) == ([], 1)
        with pytest.raises(ShoalError) as refused:
            await node.host.reader(GROUP).read(FetchRequest(Offset(2), max_bytes=100, wait_ms=20))
        assert refused.value.code == "beyond-end"
        assert refused.value.extra == {"log_start_offset": 0, "high_watermark": 1}


async def test_a_fetch_is_bounded_and_continues(tmp_path: Path) -> None:
    """max_bytes cuts at batches, at least one comes, and next_offset leads on."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        for number in range(10):
            await cluster.append(f"{number}", f"{number}+")
        fetch = await node.host.reader(GROUP).read(FetchRequest(Offset(5), max_bytes=1))
        assert (fetch.base_offset, fetch.next_offset, len(fetch.frames)) == (4, 6, 1)
        fetch = await node.host.reader(GROUP).read(FetchRequest(fetch.next_offset, max_bytes=2**20))
        assert (fetch.base_offset, fetch.next_offset) == (6, 20)


async def test_transfer_all_hands_over_and_loses_nothing(tmp_path: Path) -> None:
    """SIGTERM's first step: another agent leads within an election timeout, and appends go on there."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        assert await leader.host.transfer_all(30_000) == 1
        successor = await until(lambda: next((n for n in cluster.nodes if n.leads and n is not leader), None))
        await successor.host.append(GROUP, Submission.of([message("b")], timeout_ms=30_000))
        assert await read_values(successor) == ["a", "b"]


async def test_transfer_all_hands_quiet_groups_over(tmp_path: Path) -> None:
    """An idle cluster is the usual one that somebody stops: its leaders hand over as well."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        is_led_quietly = False
        while not is_led_quietly:
            leader = await cluster.leader()
            replica = leader.host.replica(GROUP)
            term = replica.core.term
            await until(lambda replica=replica: replica.core.is_quiet or not replica.is_leader)
            await asyncio.sleep(0.8)  # longer than an election timeout: nobody was heard for as long
            is_led_quietly = replica.is_leader and replica.core.is_quiet and replica.core.term == term
        assert await leader.host.transfer_all(30_000) == 1


async def test_transfer_all_does_not_wait_for_the_dead(tmp_path: Path) -> None:
    """Nobody is left to take over: the last agent to stop stops at once."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        for node in list(cluster.nodes):
            if node is not leader:
                await cluster.stop(node)
        began_ms = leader.host.clock.now_ms()
        assert await leader.host.transfer_all(60_000) in (0, 1)  # 1: it has stepped down by itself
        assert leader.host.clock.now_ms() - began_ms < 30_000


async def test_a_quiet_group_wakes_when_its_leader_dies(tmp_path: Path) -> None:
    """Without heartbeats, the silence of the leader's agent is what starts the election (safety 25)."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        others = [node for node in cluster.nodes if node is not leader]
        await until(lambda: all(node.host.replica(GROUP).core.is_quiet for node in cluster.nodes))
        await cluster.stop(leader)
        await until(lambda: any(node.leads for node in others))
        assert (await cluster.append("b")).base_offset == 1


async def test_a_vanished_directory_makes_a_replica_lost(tmp_path: Path) -> None:
    """It votes never again and says why; the others go on without it (safety 2)."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        await cluster.leader()
        victim = cluster.nodes[2]
        await cluster.stop(victim)
        directory = tmp_path / "3" / "topics"
        directory.rename(tmp_path / "away")
        await cluster.start(victim)
        status = victim.host.status(GROUP)
        assert status.state == "lost"
        assert "is gone" in status.reason
        assert [item.group for item in victim.host.beyond_repair()] == [GROUP]
        assert not directory.exists()
        with pytest.raises(ShoalError, match="damaged"):
            await victim.host.append(GROUP, Submission.of([message("x")], timeout_ms=100))
        await cluster.append("b")
        # And it stays lost, even when the directory comes back.
        await cluster.stop(victim)
        (tmp_path / "away").rename(directory)
        await cluster.start(victim)
        assert victim.host.status(GROUP).state == "lost"


async def test_committed_frames_are_applied_in_order_before_the_answer(tmp_path: Path) -> None:
    """A state machine sees every committed batch that it does not have, and a producer hears back after it.
    One that keeps a copy of its state begins there, at the start and after a full disk alike."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        await node.host.close_group(GROUP)
        rounds = ((0, [0, 1, 2]), (0, [0, 1, 2, 3, 4, 5]), (4, [4, 5, 6, 7, 8]), (9, [9, 10, 11]))
        for known, expected in rounds:
            seen: list[int] = []
            machine = StateMachine(
                lambda frame, seen=seen: seen.append(frame.stamp.base_offset),
                lambda known=known: known,
                lambda: 0,
            )
            await node.open(cluster.birth, machine=machine)
            await cluster.leader()
            for _ in range(3):
                answer = await cluster.append("x")
                assert seen[-1] == answer.base_offset
            assert seen == expected
            await node.host.close_group(GROUP)


async def test_deleting_a_group_frees_its_disk(tmp_path: Path) -> None:
    """Directory, registry record and hard state are gone; nothing is lost by it."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        await cluster.append("a")
        await node.host.delete_group(GROUP)
        assert not node.host.has(GROUP)
        assert not (tmp_path / "1" / "topics" / GROUP.topic_id.hex() / "0").exists()
        assert node.registry.get(GROUP) is None
        assert node.hard_states.get(GROUP) is None


async def test_records_that_fit_no_batch_are_refused_alone(tmp_path: Path) -> None:
    """One client's impossible timestamp harms nobody gathered with it, and not the replica."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        impossible = columns("x")
        impossible.timestamps_us[0] = 2**80
        submissions = [columns("a"), impossible, columns("b")]
        answers = await asyncio.gather(
            *(node.host.append(GROUP, Submission.of(item, timeout_ms=30_000)) for item in submissions),
            return_exceptions=True,
        )
        assert answers[0] == Appended(Offset(0), 1)
        assert answers[2] == Appended(Offset(1), 1)
        assert isinstance(answers[1], ShoalError)
        assert (answers[1].code, answers[1].definite) == ("bad-request", True)
        assert await read_values(node) == ["a", "b"]


async def test_questions_about_the_end_share_a_round(tmp_path: Path) -> None:
    """A hundred readers at the end cost two read indexes, not a hundred (safety 23)."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        core = leader.host.replica(GROUP).core
        asked: list[int] = []
        read_index = core.read_index
        core.read_index = lambda token, now_ms: (asked.append(token), read_index(token, now_ms))
        results = await asyncio.gather(*(leader.host.offsets(GROUP) for _ in range(100)))
        assert {item.high_watermark for item in results} == {1}
        assert len(asked) <= 2


async def test_a_restart_folds_little(tmp_path: Path) -> None:
    """The stored commit index leads the fold to the newest segments; the state is that of a whole fold."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        node = cluster.nodes[0]
        for number in range(60):
            await cluster.append(f"{number}" * 20, producer=ProducerStamp(ALICE, 0, number))
        log = node.host.replica(GROUP).log
        before = node.host.replica(GROUP).state.producers.to_bytes()
        assert len(log.spans()) > 3
        await cluster.stop(node)
        await cluster.start(node)
        replica = node.host.replica(GROUP)
        assert replica.state.producers.to_bytes() == before
        stored = node.hard_states.get(GROUP)
        assert stored is not None
        assert stored[1].commit_index > replica.log.first_index_of_segment(replica.log.last_index)


async def test_replicas_know_which_agents_share_the_failure_domain(tmp_path: Path) -> None:
    """Those that are open, and those that are opened later. Until something is said: this agent alone."""
    async with Cluster(str(tmp_path), 3) as cluster:
        leader = await cluster.leader()
        core = leader.host.replica(GROUP).core
        assert not core.state.is_colocated
        everybody = frozenset(node.agent_id for node in cluster.nodes)
        leader.host.set_colocated(everybody)
        assert core.state.is_colocated
        leader.host.set_colocated(everybody - {cluster.nodes[-1].agent_id, cluster.nodes[0].agent_id})
        assert not core.state.is_colocated
        leader.host.set_colocated(everybody)

        async def nothing() -> None:
            pass

        await leader.host.reopen(GROUP, nothing)
        assert leader.host.replica(GROUP).core.state.is_colocated
