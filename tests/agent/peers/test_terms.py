"""What two agents agree on before they greet, and links between versions that say different things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_nodes import Node, agent_id, connected, nodes
from waiting import until

from shoal.agent.levels import BEFORE_LEVELS, Level, LevelRange
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
