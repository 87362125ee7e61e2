"""A replica that stops while its agent lives, and whoever is quiet meanwhile (safety 25)."""

from __future__ import annotations

from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import ReplicaId
from shoal.replication.messages import AppendRequest, PreVote, TimeoutNow
from shoal.replication.raft import Role
from tests.replication.raft_group import Group

QUIET = RaftConfig(commit_notice_ms=0)


def quiet_group(voters: int = 3, learners: int = 0) -> Group:
    """Led by replica 0, quietly."""
    group = Group(voters, learners=learners, config=QUIET)
    group.elect(0)
    group.settle()
    group.pass_time(3_000)
    assert all(core.is_quiet for core in group.cores.values())
    return group


def test_a_quiet_leader_that_stops_wakes_everybody_and_lets_one_campaign() -> None:
    """It need not be missed for an election timeout: its best voter leads after the next message."""
    group = quiet_group(3, learners=1)
    words = group.cores[0].last_words(group.now_ms)
    assert [type(word) for word in words] == [AppendRequest, AppendRequest, AppendRequest, TimeoutNow]
    assert {word.receiver.index for word in words if isinstance(word, AppendRequest)} == {1, 2, 3}
    group.cut.add(0)
    for word in words:
        group.step(word)
    assert not any(group.cores[ordinal].is_quiet for ordinal in (1, 2, 3))
    group.settle()
    assert group.cores[1].role is Role.LEADER


def test_if_one_word_arrives_somebody_leads_in_the_end() -> None:
    """A heartbeat without the word that the others may sleep arms the timer of whoever hears it; and whom it
    then asks cannot refuse for ever that it is asked for a vote."""
    group = quiet_group()
    words = group.cores[0].last_words(group.now_ms)
    group.cut.add(0)
    group.step(next(word for word in words if word.receiver.index == 2))
    group.pass_time(10 * QUIET.election_timeout_ms)
    assert any(group.cores[ordinal].role is Role.LEADER for ordinal in (1, 2))


def test_only_a_leader_has_last_words() -> None:
    """Whoever else stops is missed by its leader."""
    group = quiet_group()
    assert group.cores[1].last_words(group.now_ms) == ()


def test_a_quiet_follower_that_is_asked_gives_its_leader_an_election_timeout() -> None:
    """It refuses at first, since the leader may just be quiet; then it doubts it."""
    group = quiet_group()
    core = group.cores[1]
    question = PreVote(
        ReplicaId(0, 2), ReplicaId(0, 1), core.term + 1, core.last_index, core.term_at(core.last_index)
    )
    group.sent.clear()
    group.step(question)
    assert [message.granted for message in group.sent if message.receiver.index == 2] == [False]
    assert not core.is_quiet
    assert core.deadline() is not None
    assert core.deadline() - group.now_ms >= QUIET.election_timeout_ms
    group.now_ms += QUIET.election_timeout_ms
    group.step(question)
    assert [message.granted for message in group.sent if message.receiver.index == 2] == [False, True]


def test_one_who_stopped_is_news_once() -> None:
    """The agent says so in every interval."""
    group = quiet_group()
    assert group.cores[1].peer_silent("a", group.now_ms)
    assert not group.cores[1].peer_silent("a", group.now_ms)
    assert not group.cores[1].peer_silent("c", group.now_ms), "whoever follows too is nobody to wait for"
    assert group.cores[0].peer_silent("b", group.now_ms)
    assert not group.cores[0].peer_silent("b", group.now_ms)
