"""Who belongs to us, who may be dialled, and where replicas may be placed (safety 6), over a made-up pool."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.events.change_counter import Watch
from shoal.agent.members.roster import Roster
from shoal.agent.members.tags import TAG_DOMAIN
from shoal.membership.interface import Member
from shoal.membership.serf_agent.hosted import as_agents

OURS, THEIRS = b"o" * 16, b"t" * 16


def agent(
    name: str, status: str = "alive", *, cluster: str = "fish", cluster_id: bytes | None = OURS, **tags: str
) -> Member:
    """A Shoal agent as gossip shows it."""
    said = {
        "cl": cluster,
        "url": "http://10.0.0.1:7070",
        "cid": "" if cluster_id is None else cluster_id.hex(),
    }
    return Member(name, "10.0.0.1", 7946, said | tags, status, 1, 0)


POOL = [
    agent("me"),
    agent("b"),
    agent("suspect", "suspect"),
    agent("dead", "failed"),
    agent("gone", "left"),
    agent("new", cluster_id=None),
    agent("foreign", cluster_id=THEIRS, nt="1"),
    agent("foreign-dead", "failed", cluster_id=b"x" * 16),
    agent("stranger", cluster="birds"),
    agent("garbled", cid="no id"),
    Member("serf", "10.0.0.1", 7946, {"role": "web"}, "alive", 1, 0),
    Member("half", "10.0.0.1", 7946, {"cl": "fish"}, "alive", 1, 0),
    Member("host", "10.0.0.1", 7946, dict(agent("hosted").tags) | {"id": "hosted", "at": "5"}, "alive", 0, 0),
]


@pytest.fixture
async def roster() -> Any:
    links: Any = SimpleNamespace(
        set_addresses=lambda urls, failed, _: (made.dialled.update(urls), made.failed.update(failed)),
        is_silent=lambda name: name in made.silent,
        has_met=lambda name: name in made.linked,
        is_linked=lambda name: name not in made.silent,
    )
    made: Any = Roster(agent_id="me", cluster="fish", links=links, watch=Watch("run"))
    made.dialled = {}
    made.failed = set()
    made.silent = {"b"}
    made.linked = {"b", "hosted", "suspect"}
    gossip: Any = SimpleNamespace(members=lambda: as_agents(POOL), set_tags=lambda tags: None)
    made.attach(gossip, {})
    made.set_cluster(OURS)
    await asyncio.sleep(0)
    yield made
    made.stop()


async def test_only_agents_of_this_very_cluster_are_ours(roster: Any) -> None:
    """No other name or id, none without an id yet, no plain Serf agent; hosted ones under their names."""
    assert [member.name for member in roster.ours()] == ["b", "dead", "gone", "hosted", "me", "suspect"]
    assert set(roster.urls()) == set(roster.dialled) == {"b", "dead", "hosted", "me", "suspect"}
    assert roster.failed == {"dead"}
    assert roster.live_peers() == ["b", "hosted", "suspect"]
    assert len(roster.members()) == len(POOL)


async def test_replicas_are_placed_on_living_agents_of_ours_only(roster: Any) -> None:
    """Never on a neighbour, a stranger, a foreign cluster's agent, or one that is on its way."""
    assert [member.name for member in roster.placeable()] == ["b", "hosted", "me"]
    assert roster.newcomers()


async def test_replicas_are_born_where_links_live_only(roster: Any) -> None:
    """Whom gossip alone calls alive, dead for a second or made up by somebody, is no place for anything; one
    that was met keeps its place in what is moved, and is not born on while its link is silent."""
    assert [member.name for member in roster.birthplaces()] == ["hosted", "me"]
    roster.silent.clear()
    assert [member.name for member in roster.birthplaces()] == ["b", "hosted", "me"]
    roster.silent.update(("b", "hosted"))
    roster.linked.clear()
    assert [member.name for member in roster.placeable()] == ["b", "hosted", "me"]
    assert [member.name for member in roster.birthplaces()] == ["me"]
    assert roster.met() == {"me", "b", "hosted", "suspect"}


async def test_who_was_never_met_is_waited_for_as_a_newcomer(roster: Any) -> None:
    """Gossip is quicker than the first link; who was met and died is not waited for."""
    pool = [member for member in as_agents(POOL) if member.tags.get("cid")]
    roster._membership.members = lambda: pool
    roster.linked.remove("b")
    roster._notice()
    assert roster.newcomers()
    assert [member.name for member in roster.placeable()] == ["hosted", "me"]
    roster.linked.add("b")
    assert not roster.newcomers()
    roster.linked.remove("b")
    assert not roster.newcomers()


async def test_foreign_clusters_are_noticed_while_they_live(roster: Any) -> None:
    """Of our name and another id, with their agents and whether they hold anything."""
    (foreign,) = roster.foreign_clusters()
    assert (foreign.cluster_id, foreign.has_topics, foreign.agents) == (THEIRS, True, ("foreign",))


async def test_colocated_are_the_agents_of_ours_in_one_failure_domain(roster: Any) -> None:
    """Dead ones too, since they come back; none where this agent's own is not known."""
    assert roster.colocated() == {"me"}
    near = ("me", "b", "dead", "foreign", "stranger")
    pool = [
        replace(member, tags=dict(member.tags) | {TAG_DOMAIN: "rack" if member.name in near else member.name})
        for member in as_agents(POOL)
    ]
    roster._membership.members = lambda: pool
    roster.attach(roster._membership, {TAG_DOMAIN: "rack"})
    roster._notice()
    assert roster.colocated() == {"me", "b", "dead"}


async def test_neighbours_are_all_but_other_clusters_agents(roster: Any) -> None:
    """What the member list shows and a restart remembers: Serf agents too, and who is on the way."""
    names = {member.name for member in roster.neighbours()}
    assert names == {"b", "dead", "gone", "half", "hosted", "me", "new", "serf", "suspect"}


async def test_a_silent_link_is_needed_to_call_an_agent_lost(roster: Any) -> None:
    """Gossip alone or a link alone is not enough (safety 5)."""
    assert not roster.is_lost("b")
    assert not roster.is_live("b")
    assert not roster.is_lost("dead")
    assert roster.is_live("hosted")


async def test_digest_tags_change_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is a broadcast to everybody (safety 28): a hundred leaders that move are one of them, with
    the last state; what others wait for (the cluster id, a drain) is told at once."""
    monkeypatch.setattr("shoal.agent.members.roster.TAGS_INTERVAL_S", 0.05)
    told: list[dict[str, str]] = []
    links: Any = SimpleNamespace(set_addresses=lambda urls, failed, _: None, is_silent=lambda name: False)
    gossip: Any = SimpleNamespace(members=lambda: (), set_tags=lambda tags: told.append(dict(tags)))
    made = Roster(agent_id="me", cluster="fish", links=links, watch=Watch("run"))
    made.attach(gossip, {})
    for number in range(100):
        made.set_placement("nonce.1", number)
        made.set_catalog(CatalogVersion(0, number), has_topics=True)
    assert told == []
    await asyncio.sleep(0.1)
    assert [(tags["cv"], tags["pv"], tags["nt"]) for tags in told] == [("99", "1.99", "1")]
    made.set_placement("nonce.1", 99)  # nothing new
    await asyncio.sleep(0.1)
    assert len(told) == 1
    made.set_drained(drained=True)
    assert len(told) == 2
    made.stop()
