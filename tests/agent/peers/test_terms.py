"""What two agents agree on before they greet, and links between versions that say different things."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_nodes import CLUSTER, PATIENT, STRANGER, Node, agent_id, connected, nodes
from listening import serving
from waiting import until

from shoal.agent.levels import BEFORE_LEVELS, Level, LevelRange
from shoal.agent.peers.connection import PeerConnection
from shoal.agent.peers.frames import FrameType
from shoal.agent.peers.links import PeerUnavailable
from shoal.agent.peers.terms import (
    BEFORE_TERMS,
    HEADER,
    MAX_TERMS_CHARACTERS,
    LinkTerms,
    TermsError,
    agree,
    terms_from_text,
    terms_in_head,
)

numbers = st.integers(1, 9)
terms = st.builds(
    lambda a, b, c, d, level: LinkTerms(
        min(a, b), max(a, b), LevelRange(Level(min(c, d)), Level(max(c, d))), Level(level)
    ),
    numbers, numbers, numbers, numbers, numbers,
)  # fmt: skip


@given(terms, st.text("abc=1-;", max_size=20))
def test_terms_come_back_from_their_text(given_terms: LinkTerms, more: str) -> None:
    """Also behind which a later version says more."""
    assert terms_from_text(given_terms.to_text()) == given_terms
    assert terms_from_text(f"{given_terms.to_text()} {more}") == given_terms
    head = f"HTTP/1.1 101 X\r\nConnection: Upgrade\r\n{HEADER.upper()}:{given_terms.to_text()} ".encode()
    assert terms_in_head(head) == given_terms


@given(st.binary(max_size=200))
def test_any_head_gives_terms(head: bytes) -> None:
    """It comes from whoever listens there."""
    found = terms_in_head(b"HTTP/1.1 101 X\r\nShoal-Link: " + head)
    assert found.lowest_version <= found.highest_version
    assert found.levels.lowest <= found.levels.highest
    assert terms_in_head(head) is not None


def test_long_terms_are_cut_before_they_are_read() -> None:
    """The bound holds for both sides."""
    assert terms_from_text("x" * 10**6) == BEFORE_TERMS
    assert len(LinkTerms(9_999, 9_999, LevelRange(Level(9_999), Level(9_999)), Level(9_999)).to_text()) < (
        MAX_TERMS_CHARACTERS
    )


@given(terms, terms)
def test_both_sides_reach_the_same_verdict(mine: LinkTerms, theirs: LinkTerms) -> None:
    """The version is in both ranges, and each understands the other's level."""

    def verdict(one: LinkTerms, other: LinkTerms) -> int | None:
        try:
            return agree(one, other)
        except TermsError:
            return None

    version = verdict(mine, theirs)
    assert version == verdict(theirs, mine)
    fits = mine.levels.has(theirs.level) and theirs.levels.has(mine.level)
    versions = range(
        max(mine.lowest_version, theirs.lowest_version), min(mine.highest_version, theirs.highest_version) + 1
    )
    assert version == (max(versions) if versions and fits else None)


def test_an_agent_that_says_nothing_speaks_version_1_and_level_1() -> None:
    """It was built before there were levels."""
    assert terms_from_text(None) == terms_from_text("") == terms_in_head(b"HTTP/1.1 101 X") == BEFORE_TERMS
    assert agree(LinkTerms(1, 3), BEFORE_TERMS) == 1


# ---- real links ----------------------------------------------------------------------------------

OLD, NEW = BEFORE_LEVELS, LevelRange(Level(1), Level(2))


@pytest.mark.parametrize("says_terms", [True, False])
async def test_agents_of_both_versions_are_linked_at_the_first_level(says_terms: bool) -> None:
    """Also where the accepting side hears no terms, as from an agent of before levels."""
    for one, two in ((Node("a", levels=OLD), Node("b", levels=NEW)), (Node("a", levels=NEW), Node("b"))):
        two.says_terms = says_terms
        async with nodes(one, two):
            await until(lambda one=one: connected(one))
            await until(lambda two=two: connected(two))


@pytest.mark.parametrize(("older", "newer"), [("a", "b"), ("b", "a")])
async def test_an_agent_that_does_not_understand_the_level_gets_no_link(older: str, newer: str) -> None:
    """Whichever side dials is told why."""
    old, new = Node(older, levels=OLD), Node(newer, levels=NEW)
    new.links.level = Level(2)
    async with nodes(old, new):
        dialler, other = (old, new) if older == "a" else (new, old)
        peer = dialler.links._peers[other.links.agent_id]
        await until(lambda: "the cluster is at level 2, and the agent understands 1" in peer.last_complaint)
        with pytest.raises(PeerUnavailable):
            await old.links.request(agent_id(newer), 200, b"", 200)
        assert not old.links.is_linked(new.links.agent_id)
        assert not new.links.is_linked(old.links.agent_id)


async def test_an_agent_that_says_no_terms_gets_no_link_at_a_higher_level() -> None:
    """It was built before there were levels."""
    old, new = Node("a"), Node("b", levels=NEW)
    new.says_terms, new.links.level = False, Level(2)
    async with nodes(old, new):
        peer = old.links._peers[new.links.agent_id]
        await until(lambda: "the cluster is at level 2" in peer.last_complaint)


async def test_links_to_agents_that_do_not_understand_it_end_when_the_level_rises() -> None:
    """A member that was rolled back in that moment gets nothing of what is new; the others stay linked."""
    old, new, newest = Node("a", levels=OLD), Node("b", levels=NEW), Node("c", levels=NEW)
    async with nodes(old, new, newest):
        await until(lambda: all(connected(node) for node in (old, new, newest)))
        open_before = list(new.links._peers[newest.links.agent_id].connections.values())
        for node in (new, newest):
            node.links.set_level(Level(2))
        await until(lambda: not new.links.is_linked(old.links.agent_id))
        await until(lambda: not newest.links.is_linked(old.links.agent_id))
        with pytest.raises(PeerUnavailable):
            await old.links.request(agent_id("b"), 200, b"", 200)
        assert list(new.links._peers[newest.links.agent_id].connections.values()) == open_before
        peer = old.links._peers[new.links.agent_id]
        await until(lambda: "the cluster is at level 2, and the agent understands 1" in peer.last_complaint)


def connections(node: Node, other: Node) -> list[PeerConnection]:
    return list(node.links._peers[other.links.agent_id].connections.values())


@pytest.mark.parametrize(("lower", "higher"), [("a", "b"), ("b", "a")])
async def test_a_linked_agent_hears_of_a_higher_level_on_either_side(lower: str, higher: str) -> None:
    """When the link is opened, and again when the other side makes its links anew."""
    one, other = Node(lower, levels=NEW), Node(higher, levels=NEW)
    heard: list[Level] = []
    one.links.on_level = heard.append
    other.links.on_level = lambda level: pytest.fail(f"told of {level}")
    async with nodes(one, other):
        await until(lambda: connected(one) and connected(other))
        assert heard == []
        other.links.set_level(Level(2))
        other.links.greet_again()
        await until(lambda: heard)
        one.links.set_level(Level(2))
        await until(lambda: connected(one) and connected(other))
        known, before = len(heard), connections(one, other)
        other.links.greet_again()
        await until(lambda: connected(one) and not set(before) & set(connections(one, other)))
    assert (set(heard), len(heard)) == ({2}, known)


@pytest.mark.parametrize(("older", "newer"), [("a", "b"), ("b", "a")])
async def test_an_agent_hears_on_either_side_that_the_cluster_has_outgrown_it(older: str, newer: str) -> None:
    """The one that is dialled is not greeted any more: the header alone tells it."""
    old, new = Node(older, levels=OLD), Node(newer, levels=NEW)
    new.links.level = Level(2)
    heard: list[str] = []
    old.links.on_level = lambda level: heard.append(f"old {level}")
    new.links.on_level = lambda level: heard.append(f"new {level}")
    async with nodes(old, new):
        await until(lambda: heard)
    assert set(heard) == {"old 2"}


@pytest.mark.parametrize("number", ["12345", "00001", "0", "-1", "1.5", "10000000000000000000000"])
def test_a_number_that_is_no_level_is_not_cut_to_one(number: str) -> None:
    """The terms are illegible then, whatever else they say."""
    for text in (f"versions=1-1 levels=1-9 level={number}", f"versions=1-1 levels=1-{number} level=1"):
        assert terms_from_text(text).level == 1
        assert terms_from_text(text).levels in (BEFORE_LEVELS, LevelRange(Level(1), Level(9)))


# ---- an agent of the version before levels -------------------------------------------------------

FORMER_UPGRADE = b"GET /v1/peer HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: shoal-peer/1\r\n\r\n"
FORMER_MAX_UPGRADE_BYTES = 4_096
"""Of the answer's head: it reads no more."""


def former_hello(kind: int, me: str, other: str, nonce: bytes) -> bytes:
    """The frame as commit 4205efb writes it, and as it must be to be read there."""
    payload = b"SHPR\x01\x00" + bytes([kind]) + CLUSTER + bytes.fromhex(me) + bytes.fromhex(other) + nonce
    return struct.pack("<IB", len(payload), FrameType.HELLO) + payload


async def test_a_dialler_of_before_levels_is_greeted_in_its_own_bytes() -> None:
    """It sends no terms, and reads nothing of the answer's head but the status line."""
    new = Node("b", levels=NEW, config=PATIENT)
    async with nodes(new):
        new.links.set_addresses({STRANGER: "http://127.0.0.1:1"})
        reader, writer = await asyncio.open_connection("127.0.0.1", new.port)
        writer.write(FORMER_UPGRADE)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 40)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert len(head) < FORMER_MAX_UPGRADE_BYTES
        writer.write(former_hello(0, STRANGER, new.links.agent_id, b"stranger"))
        answer = await asyncio.wait_for(reader.readexactly(68), 40)
        assert answer == former_hello(0, new.links.agent_id, STRANGER, b"nonce---")
        await until(lambda: new.links.is_linked(STRANGER))
        new.links.set_level(Level(2))
        await asyncio.wait_for(reader.read(), 40)
        writer.close()
        await until(lambda: not new.links.is_linked(STRANGER))


async def test_an_acceptor_of_before_levels_is_dialled_with_its_own_bytes() -> None:
    """Its answer has no terms; the header of the question is one that any HTTP server passes over."""
    new = Node("a", levels=NEW, config=PATIENT)
    told = asyncio.get_running_loop().create_future()

    async def former(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: shoal-peer/1\r\n\r\n"
        )
        hello = await reader.readexactly(68)
        writer.write(former_hello(hello[11], agent_id("b"), new.links.agent_id, b"formerly"))
        if not told.done():
            told.set_result((head, hello))
        await reader.read()
        writer.close()

    async with serving(former) as url, nodes(new):
        new.links.set_addresses({agent_id("b"): url})
        head, hello = await asyncio.wait_for(told, 40)
        await until(lambda: new.links.is_linked(agent_id("b")))
        lines = head.split(b"\r\n")
        assert lines[0] == FORMER_UPGRADE.split(b"\r\n")[0]
        assert [line for line in lines[2:] if not line.startswith(b"Shoal-Link:")] == (
            FORMER_UPGRADE.split(b"\r\n")[2:]
        )
        assert hello == former_hello(hello[11], new.links.agent_id, agent_id("b"), b"nonce---")
