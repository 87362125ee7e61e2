"""The snapshot of known peers: its bytes, its bounds, and what a member does with its former clocks."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.membership.config import GossipConfig
from shoal.membership.serf.core import SerfCore
from shoal.membership.serf.snapshot import (
    MAX_PEERS,
    MAX_SNAPSHOT_BYTES,
    Clocks,
    Peer,
    Snapshot,
    SnapshotError,
)
from shoal.membership.wire.messages import MAX_NAME_BYTES
from shoal.membership.wire.serf import MAX_LTIME, Query, UserEvent
from tests.membership.serf.test_core import Script, at

NAMES = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=20)
ADDRESSES = st.sampled_from(["127.0.0.1", "10.1.2.3", "::1", "fe80::1"])
PEERS = st.builds(Peer, NAMES, ADDRESSES, st.integers(1, 65_535))
TIMES = st.integers(0, MAX_LTIME)


def test_the_lines_are_serfs() -> None:
    """Names, addresses and clocks as in a snapshot of Serf's; the first line is a comment to it."""
    snapshot = Snapshot((Peer("a b", "10.0.0.1", 7946), Peer("c", "::1", 1)), Clocks(7, 3, 2))
    first, *lines = snapshot.to_bytes().decode().splitlines()
    assert first.startswith("# shoal-snapshot-1 ")
    assert lines == [
        "alive: a b 10.0.0.1:7946",
        "alive: c [::1]:1",
        "clock: 7",
        "event-clock: 3",
        "query-clock: 2",
    ]


@given(st.lists(PEERS, max_size=5), st.builds(Clocks, TIMES, TIMES, TIMES))
def test_what_is_kept_comes_back(peers: list[Peer], clocks: Clocks) -> None:
    """Whatever the names (but for those that would break their line, which are nobody)."""
    kept = tuple(peer for peer in peers if peer.name.isprintable())
    assert Snapshot.from_bytes(Snapshot(tuple(peers), clocks).to_bytes()) == Snapshot(kept, clocks)


def test_a_snapshot_is_bounded() -> None:
    """The first peers are kept; the longest fit into what a reader takes."""
    many = tuple(
        Peer("ü" * (MAX_NAME_BYTES // 2), "2001:db8:1111:2222:3333:4444:5555:6666", 65_535)
        for _ in range(9_999)
    )
    data = Snapshot((Peer("first", "10.0.0.1", 1), *many), Clocks(MAX_LTIME, MAX_LTIME, MAX_LTIME)).to_bytes()
    assert len(data) <= MAX_SNAPSHOT_BYTES
    peers = Snapshot.from_bytes(data).peers
    assert (len(peers), peers[0].name) == (MAX_PEERS, "first")


@given(st.binary(max_size=200))
def test_anything_else_is_no_snapshot(data: bytes) -> None:
    """One error, whatever the bytes, and whether or not their checksum is right."""
    with pytest.raises(SnapshotError):
        Snapshot.from_bytes(data)
    body = b"alive: " + data
    with pytest.raises(SnapshotError):
        Snapshot.from_bytes(b"# shoal-snapshot-1 %08x\n" % zlib.crc32(body) + body + b"\xff")


@pytest.mark.parametrize(
    "line", ["alive: a 10.0.0.1", "alive: 10.0.0.1:7", "clock: -1", "clock: 9" + 30 * "9", "alive: a 1:x"]
)
def test_bad_lines(line: str) -> None:
    """A right checksum over wrong lines, as an older or newer program might leave it."""
    body = f"{line}\nunknown: kept for later\n".encode()
    with pytest.raises(SnapshotError):
        Snapshot.from_bytes(b"# shoal-snapshot-1 %08x\n" % zlib.crc32(body) + body)
    assert Snapshot.from_bytes(b"# shoal-snapshot-1 %08x\n" % zlib.crc32(b"x: 1\n") + b"x: 1\n") == Snapshot()


def test_half_a_file_is_no_snapshot() -> None:
    """Every prefix of a snapshot, and every flipped byte, is refused."""
    data = Snapshot((Peer("a", "10.0.0.1", 7946),), Clocks(7, 3, 2)).to_bytes()
    for length in range(len(data)):
        with pytest.raises(SnapshotError):
            Snapshot.from_bytes(data[:length])
    for place in range(len(data)):
        with pytest.raises(SnapshotError):
            Snapshot.from_bytes(data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])


def test_a_member_goes_on_with_the_clocks_of_its_former_life() -> None:
    """Its intents are newer than its old ones, and what it had heard then is no news any more."""
    core = SerfCore(GossipConfig.lan(name="me"), at(1), random.Random(1), 0)
    assert core.clocks == Clocks(0, 0, 0)
    core.restore(Clocks(40, 20, 10))
    assert core.clocks == Clocks(40, 20, 10)
    script = Script()
    script.core.restore(Clocks(40, 20, 10))
    script.hear_serf(UserEvent(20, "old", b""))
    script.hear_serf(UserEvent(21, "new", b""))
    assert [event.name for event in script.user_events] == ["new"]
    for ltime, number in ((10, 1), (11, 2)):
        script.hear_serf(Query(ltime, number, at(2), "n2", (), 0, 0, 10**9, "q", b""))
    assert [query.key for query in script.queries] == [(11, 2)]
    script.core.announce_join(0)
    assert script.local_state().status_ltimes["me"] == 41


def test_without_a_former_life_everything_is_news() -> None:
    """Zeros are no clocks: the first event of a pool has Lamport time 1, and a query may have 0."""
    script = Script()
    script.core.restore(Clocks())
    script.hear_serf(UserEvent(1, "first", b""))
    script.hear_serf(Query(0, 1, at(2), "n2", (), 0, 0, 10**9, "q", b""))
    assert [event.name for event in script.user_events] == ["first"]
    assert len(script.queries) == 1
