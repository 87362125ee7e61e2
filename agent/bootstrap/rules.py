"""May this empty agent found a cluster, join one, or must it wait?

Law of this file: pure. It looks at one frozen View of gossip and answers with one Decision. The shell
(cluster_finder.py) carries it out, and asks again when the view changes or `until_ms` arrives. No clock, no
chance, no I/O.

The rules are safety 6. With seeds or an expected number of members an agent founds no cluster before contact,
or before that many have met. Of several empty agents the smallest id founds. A cluster seen is always joined.
Two clusters never merge, but one without any topic may be given up for another (the larger id yields).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.agent.log_lines.names import agent_name
from shoal.agent.members.tags import Peer

SMALL_CATALOG_VOTERS = 3
LARGE_CATALOG_VOTERS = 5  # from five members on; more voters would only slow the catalog down


@dataclass(frozen=True, slots=True)
class View:
    """The knowledge of an agent without a cluster. Times are monotonic milliseconds."""

    agent_id: str
    peers: Sequence[Peer]  # live, of our cluster name, without ourselves
    expect: int | None
    has_seeds: bool
    started_ms: int
    last_change_ms: int  # when the set of live peers last changed
    discovery_window_ms: int
    now_ms: int


class Wait(NamedTuple):
    """Nothing may be done yet. `until_ms` None: only a change of the view can help."""

    reason: str
    until_ms: int | None


class Join(NamedTuple):
    """Adopt this cluster id; any of `urls` can tell the birth of its catalog."""

    cluster_id: bytes
    urls: tuple[str, ...]


class Found(NamedTuple):
    """Make a cluster; these agents are the birth voters of its catalog, ourselves among them."""

    voters: tuple[str, ...]


Decision = Wait | Join | Found


def decide(view: View) -> Decision:
    """The next step of an agent without a cluster id."""
    clusters = [peer for peer in view.peers if peer.cluster_id is not None]
    if clusters:
        return _join(clusters)
    present = sorted({view.agent_id, *(peer.agent_id for peer in view.peers)})
    missing = _must_wait_for(view, len(present))
    if missing is not None:
        return missing
    if present[0] != view.agent_id:
        return Wait(f"{agent_name(present[0])} has the smallest id and will found the cluster", None)
    return Found(catalog_voters(view.agent_id, present))


def _join(clusters: Sequence[Peer]) -> Join:
    """Of several clusters under one name (a fault someone else must settle) the one with most members, then
    smallest id.
    """
    sizes = Counter(peer.cluster_id for peer in clusters)
    chosen = min(sizes, key=lambda cluster_id: (-sizes[cluster_id], cluster_id or b""))
    assert chosen is not None
    return Join(chosen, tuple(sorted(peer.url for peer in clusters if peer.cluster_id == chosen)))


def _must_wait_for(view: View, present: int) -> Wait | None:
    if view.expect is not None:
        if present < view.expect:
            return Wait(f"{present} of {view.expect} expected members have met", None)
        return None
    if view.has_seeds and present == 1:
        return Wait("no seed has answered yet", None)
    # A seed has answered, or nobody is expected: let the picture settle, so that those who start together
    # meet.
    since = view.last_change_ms if view.has_seeds else view.started_ms
    until = since + view.discovery_window_ms
    if view.now_ms < until:
        return Wait("listening for other agents", until)
    return None


def catalog_voters(founder: str, present: Sequence[str]) -> tuple[str, ...]:
    """An odd number of the members present: five of five or more, else three, else the founder alone.

    Two members found with one voter: two voters would stop with either, one stops only with itself.
    """
    assert founder in present
    others = sorted(set(present) - {founder})
    if len(others) + 1 >= LARGE_CATALOG_VOTERS:
        wanted = LARGE_CATALOG_VOTERS
    elif len(others) + 1 >= SMALL_CATALOG_VOTERS:
        wanted = SMALL_CATALOG_VOTERS
    else:
        wanted = 1
    return (founder, *others[: wanted - 1])


def must_dissolve(own: bytes, foreign: bytes, *, own_topics: int, foreign_has_topics: bool) -> bool:
    """Should our cluster give itself up for `foreign`, met under the same name?

    Only a cluster without topics may. Against one that has topics it always yields; of two empty ones the
    larger id.
    """
    assert own != foreign
    if own_topics > 0:
        return False
    return foreign_has_topics or own > foreign


def can_never_have_lived(birth_voters: Sequence[str], foreign_agents: Sequence[str]) -> bool:
    """Whether our catalog can never have committed anything: too many of its birth voters belong elsewhere.

    An agent belongs to one cluster for as long as its data live, so a birth voter that shows another
    cluster's id has never voted in ours. It happens when the founder crashes between founding and telling.
    """
    possible = len(set(birth_voters) - set(foreign_agents))
    return 2 * possible <= len(birth_voters)
