"""The member list as the rest of the agent needs it: ours, live, reachable, and what they gossip about
themselves.

Law of this file: it reads the gossip and Links and writes this agent's tags; it decides nothing about
members. Tags are read and changed here; node.py writes those that an agent begins with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from shoal.addresses import plain_address
from shoal.agent.durable.catalog_version import CatalogVersion, version_from_text
from shoal.agent.durable.ids import ID_BYTES
from shoal.agent.events.change_counter import Watch
from shoal.agent.levels import HOLD, Level, LevelRange, range_from_text
from shoal.agent.members.tags import (
    LIVE,
    TAG_BOOT_NONCE,
    TAG_CATALOG,
    TAG_CLUSTER,
    TAG_CLUSTER_ID,
    TAG_DOMAIN,
    TAG_DRAINED,
    TAG_LEVELS,
    TAG_NAME,
    TAG_PLACEMENT,
    TAG_TOPICS,
    TAG_URL,
    TAG_WEIGHT,
    Peer,
    is_ours,
    is_shoal,
    url_of,
)
from shoal.agent.peers.links import Links
from shoal.errors import ShoalError
from shoal.membership.interface import Gossip, Member, PoolEvent
from shoal.membership.serf_agent.hosted import natural as natural
from shoal.replication.placement.assignment import Candidate

PLACEMENT_EVENT = "shoal-placement"
MAX_ANNOUNCEMENT_BYTES = 256  # an agent id, a run and a number
MAX_MISPLACED_SAID = 8  # more than a few are no mistake of a configuration
TAGS_INTERVAL_S = 1.0  # tags of progress change at most so often: each change is a broadcast (safety 28)

logger = logging.getLogger("shoal.agent")


class ForeignCluster(NamedTuple):
    """Another cluster met under our name."""

    cluster_id: bytes
    has_topics: bool
    agents: tuple[str, ...]


class Roster:
    """Attach membership once it is started, links from the beginning."""

    def __init__(self, *, agent_id: str, cluster: str, links: Links, watch: Watch) -> None:
        self.agent_id = agent_id
        self.cluster = cluster
        self.cluster_id: bytes | None = None
        self._links = links
        self._watch = watch
        self._membership: Gossip | None = None
        self._tags: dict[str, str] = {}
        self._tags_timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []
        self.on_announcement: Callable[[str, str, int], None] = lambda *_: None
        """Called with agent id, run and placement version of every route event of another agent."""
        self.on_moved: Callable[[], None] = lambda: None
        """Called when an agent of this cluster, this one included, is at another address than before."""
        self._places: dict[str, str] = {}
        self._scheduled = False
        self._members: tuple[Member, ...] = ()
        self._ours: list[Member] = []
        self._live: set[str] = set()
        self._met = {agent_id}
        self._addresses: frozenset[str] = frozenset()
        self._misplaced: set[str] = set()

    def listen(self, listener: Callable[[], None]) -> None:
        """Called after every change of the member list or of a tag, once per loop turn."""
        self._listeners.append(listener)

    def attach(self, membership: Gossip, tags: dict[str, str]) -> None:
        """Membership has started with these tags."""
        self._membership = membership
        self._tags = tags
        self.changed()

    def gossip(self) -> Gossip:
        """Raises ShoalError not-ready while there is none."""
        if self._membership is None:
            raise ShoalError("not-ready", "gossip has not started yet")
        return self._membership

    def changed(self) -> None:
        """Membership's on_event. Coalesced: a push/pull tells of many members at once."""
        if not self._scheduled and self._membership is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._notice)

    def _notice(self) -> None:
        self._scheduled = False
        assert self._membership is not None
        self._members = self._membership.members()
        self._ours = self._filter_ours()
        self._live = {member.name for member in self._ours if member.status in LIVE}
        self._addresses = frozenset(
            plain_address(member.address)
            for member in self._members
            if is_shoal(member) and member.tags[TAG_CLUSTER] == self.cluster and member.status != "left"
        )
        self._say_misplaced()
        urls = self.urls()
        former, self._places = self._places, {m.name: plain_address(m.address) for m in self._ours}
        self._links.set_addresses(urls, urls.keys() - self._live, self._places)
        if any(former.get(name, address) != address for name, address in self._places.items()):
            self.on_moved()
        self._watch.changed()
        for listener in self._listeners:
            listener()

    def _say_misplaced(self) -> None:
        """Members that would be agents of ours if their URLs were at their addresses: a few, each once."""
        for member in self._members:
            if (
                member.tags.get(TAG_CLUSTER) == self.cluster
                and TAG_URL in member.tags
                and not is_shoal(member)
                and member.name not in self._misplaced
                and len(self._misplaced) < MAX_MISPLACED_SAID
            ):
                self._misplaced.add(member.name)
                logger.warning(
                    "member %s is at %s but its URL is %.100r, so it is not accepted as an agent: give its"
                    " gossip and HTTP one address (--advertise)",
                    member.tags.get(TAG_NAME, member.name),
                    member.address,
                    member.tags[TAG_URL],
                )

    # ---- own tags -----------------------------------------------------------------------------------------

    def set_cluster(self, cluster_id: bytes) -> None:
        """Everybody should know at once: the others wait for it."""
        self.cluster_id = cluster_id
        self._tags[TAG_CLUSTER_ID] = cluster_id.hex()
        self._flush_tags()
        self.changed()

    def move(self, address: str, url: str) -> bool:
        """This agent has another address. False: who gossips for it decides where it is."""
        if not self.gossip().move(address):
            return False
        self._tags[TAG_URL] = url
        self._flush_tags()
        self.changed()
        return True

    def set_drained(self, *, drained: bool) -> None:
        """Whether this agent shall hold nothing: the leaders of its groups act on it."""
        if drained:
            self._tags[TAG_DRAINED] = "1"
        else:
            self._tags.pop(TAG_DRAINED, None)
        self._flush_tags()
        self.changed()

    def set_placement(self, run: str, version: int) -> None:
        """The placement version of this agent. Its run is the boot nonce, which stands in a tag of its own,
        and a generation."""
        generation = run.rpartition(".")[2]
        self._set_later(TAG_PLACEMENT, f"{generation}.{version}")

    def announce_placement(self, run: str, version: int) -> None:
        """As a route event, which says only that there is news."""
        if self._membership is not None:
            payload = f"{self.agent_id} {run} {version}".encode()
            self._membership.send_user_event(PLACEMENT_EVENT, payload)

    def on_pool_event(self, event: PoolEvent) -> None:
        """Membership's on_user_event. Events that are no route events are not ours."""
        if event.name != PLACEMENT_EVENT:
            return
        words = event.payload[:MAX_ANNOUNCEMENT_BYTES].decode("ascii", "replace").split(" ")
        if len(words) == 3 and words[0] != self.agent_id:
            self.on_announcement(words[0], words[1], natural(words[2]))

    def set_catalog(self, version: CatalogVersion, *, has_topics: bool) -> None:
        """The catalog version of this agent, and whether its cluster holds anything."""
        self._set_later(TAG_CATALOG, str(version))
        self._set_later(TAG_TOPICS, "1" if has_topics else "0")

    def set_level(self, level: Level) -> None:
        """Of the cluster. Agents that do not understand it are linked no longer."""
        self._links.set_level(level)

    def greet_again(self) -> None:
        """Let every linked agent hear of the level here anew."""
        self._links.greet_again()

    def understood_levels(self) -> dict[str, LevelRange]:
        """By members of this cluster that have not left, failed ones among them, as they last said."""
        return {
            member.name: range_from_text(member.tags.get(TAG_LEVELS))
            for member in self.ours()
            if member.status != "left"
        }

    def levels_of_left(self) -> dict[str, LevelRange]:
        """Understood by members of this cluster that have left, as they last said."""
        return {
            member.name: range_from_text(member.tags.get(TAG_LEVELS))
            for member in self.ours()
            if member.status == "left"
        }

    def holds_level(self) -> list[str]:
        """Members that want the cluster's level to stay (--hold-level), those that have left among them."""
        return [member.name for member in self.ours() if member.tags.get(TAG_LEVELS, "").endswith(HOLD)]

    def _set_later(self, tag: str, value: str) -> None:
        if self._tags.get(tag) == value:
            return
        self._tags[tag] = value
        if self._tags_timer is None:
            self._tags_timer = asyncio.get_running_loop().call_later(TAGS_INTERVAL_S, self._flush_tags)

    def _flush_tags(self) -> None:
        if self._tags_timer is not None:
            self._tags_timer.cancel()
            self._tags_timer = None
        if self._membership is not None:
            self._membership.set_tags(self._tags)

    def stop(self) -> None:
        """No timer outlives the agent."""
        if self._tags_timer is not None:
            self._tags_timer.cancel()
            self._tags_timer = None
        self._membership = None

    # ---- what is known ------------------------------------------------------------------------------------

    def members(self) -> tuple[Member, ...]:
        """Everybody in the pool, dead or alive, of any cluster."""
        return self._members

    def neighbours(self) -> list[Member]:
        """Everybody in the pool but agents of other clusters."""
        return [member for member in self._members if is_ours(member, self.cluster, self.cluster_id)]

    def known_members(self) -> set[str]:
        """Names of everybody in the pool."""
        return {member.name for member in self._members}

    def ours(self) -> list[Member]:
        """Shoal agents of this very cluster, this agent included."""
        return self._ours

    def _filter_ours(self) -> list[Member]:
        return [
            member
            for member in self._members
            if is_shoal(member)
            and is_ours(member, self.cluster, self.cluster_id)
            and (self.cluster_id is None or member.tags.get(TAG_CLUSTER_ID))
        ]

    def find(self, name_or_id: str) -> Member | None:
        """By gossip name (the agent id) or by human name."""
        for member in self._members:
            if name_or_id in (member.name, member.tags.get(TAG_NAME)):
                return member
        return None

    def urls(self) -> dict[str, str]:
        """Agent id -> URL of everybody of this cluster; those who left are nobody to dial."""
        return {member.name: url_of(member) for member in self.ours() if member.status != "left"}

    def colocated(self) -> frozenset[str]:
        """Agents of this cluster in the failure domain of this one, which is among them."""
        domain = self._tags.get(TAG_DOMAIN)
        near = (member.name for member in self._ours if member.tags.get(TAG_DOMAIN) == domain)
        return frozenset({self.agent_id, *near} if domain else {self.agent_id})

    def knows_address(self, address: str) -> bool:
        """Whether an agent of our name lives there, as far as gossip says; those on their way in, too."""
        return plain_address(address) in self._addresses

    def is_live(self, agent_id: str) -> bool:
        """Gossip has not given it up, and its link is not silent: a leader for whom this is false is none."""
        if agent_id == self.agent_id:
            return True
        return agent_id in self._live and not self._links.is_silent(agent_id)

    def is_lost(self, agent_id: str) -> bool:
        """Gossip has given it up or never heard of it, and its link is silent: both (safety 5)."""
        return agent_id not in self.live_agents() and self._links.is_silent(agent_id)

    def live_agents(self) -> frozenset[str]:
        """Members of this cluster that gossip has not given up, this agent included."""
        return frozenset(self._live | {self.agent_id})

    def live_peers(self) -> list[str]:
        """Live agents of this cluster but this one."""
        return sorted(self._live - {self.agent_id})

    def met(self) -> frozenset[str]:
        """Agents with a link in this run, this one included: the others may exist in gossip only."""
        self._met.update(name for name in self._live if self._links.has_met(name))
        return frozenset(self._met)

    def placeable(self) -> list[Member]:
        """Where replicas may be moved: alive by gossip, met, of this cluster, and not drained. One whose link
        is silent for a moment counts: a new learner has to answer before anything depends on it."""
        met = self.met()
        return [
            member
            for member in self.ours()
            if member.status == "alive" and member.name in met and not is_drained(member)
        ]

    def birthplaces(self) -> list[Member]:
        """Where replicas may be born: whose link is up, too. A group that is born on the dead is never led,
        and gossip says of the dead for seconds that they live."""
        return [member for member in self.placeable() if self.is_linked(member.name)]

    def is_linked(self, agent_id: str) -> bool:
        """Whether it can be asked now: this agent itself, or one whose link is up."""
        return agent_id == self.agent_id or self._links.is_linked(agent_id)

    def holders_count(self) -> int:
        """How many agents replicas can be spread over, those counted that may come back: nobody who left or
        is drained."""
        return sum(member.status != "left" and not is_drained(member) for member in self.ours())

    def drained(self) -> frozenset[str]:
        """Drained members: they hold and lead nothing."""
        return frozenset(member.name for member in self.ours() if is_drained(member))

    def newcomers(self) -> bool:
        """Whether somebody alive is on the way into this cluster: of our name, and of no cluster yet, or of
        ours and never met."""
        met = self.met()
        return any(
            member.status == "alive"
            and is_shoal(member)
            and member.tags[TAG_CLUSTER] == self.cluster
            and (
                not member.tags.get(TAG_CLUSTER_ID)
                or (cluster_id_of(member) == self.cluster_id and member.name not in met)
            )
            for member in self._members
        )

    def catalog_versions(self) -> dict[str, CatalogVersion]:
        """Versions that live peers gossip; a tag that is no version counts as the lowest."""
        live = set(self.live_peers())
        return {
            member.name: version_from_text(member.tags.get(TAG_CATALOG, ""))
            for member in self._members
            if member.name in live
        }

    def placement_versions(self) -> dict[str, tuple[str, int]]:
        """The (run, placement version) that live peers gossip."""
        live = set(self.live_peers())
        versions = {}
        for member in self._members:
            generation, _, version = member.tags.get(TAG_PLACEMENT, "").partition(".")
            if member.name in live and generation:
                boot = member.tags.get(TAG_BOOT_NONCE, "")
                versions[member.name] = (f"{boot}.{generation}", natural(version))
        return versions

    def starting_peers(self) -> list[Peer]:
        """Live agents under our cluster's name, as bootstrap sees them."""
        return [
            Peer(member.name, cluster_id_of(member), member.tags[TAG_URL])
            for member in self._members
            if member.name != self.agent_id
            and member.status in LIVE
            and is_shoal(member)
            and member.tags[TAG_CLUSTER] == self.cluster
        ]

    def foreign_clusters(self) -> list[ForeignCluster]:
        """Clusters of our name but another id, with their live agents."""
        by_id: dict[bytes, list[Member]] = {}
        for member in self._members:
            theirs = cluster_id_of(member)
            if member.status in LIVE and member.tags.get(TAG_CLUSTER) == self.cluster and theirs is not None:
                by_id.setdefault(theirs, []).append(member)
        return [
            ForeignCluster(
                cluster_id,
                any(member.tags.get(TAG_TOPICS) == "1" for member in by_id[cluster_id]),
                tuple(sorted(member.name for member in by_id[cluster_id])),
            )
            for cluster_id in sorted(by_id)
            if cluster_id != self.cluster_id
        ]

    # ---- links, as the services want them -----------------------------------------------------------------

    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
        """Raises PeerUnavailable or PeerRequestFailed."""
        return await self._links.request(agent_id, kind, payload, timeout_ms)

    def send_control(self, agent_id: str, kind: int, payload: bytes) -> bool:
        """False when it was dropped."""
        return self._links.send_control(agent_id, kind, payload)


def candidate_of(member: Member) -> Candidate:
    """A member as placement sees it. Nothing in its tags makes it unfit: a weight that is no number is 1."""
    return Candidate(
        agent_id=member.name,
        failure_domain=member.tags.get(TAG_DOMAIN, member.name),
        weight=max(1, natural(member.tags.get(TAG_WEIGHT, "100"))),
    )


def is_drained(member: Member) -> bool:
    """Whether it has said that it shall hold nothing."""
    return member.tags.get(TAG_DRAINED) == "1"


def cluster_id_of(member: Member) -> bytes | None:
    """None while the member is empty, or when its tag is no id."""
    try:
        cluster_id = bytes.fromhex(member.tags.get(TAG_CLUSTER_ID, ""))
    except ValueError:
        return None
    return cluster_id if len(cluster_id) == ID_BYTES else None
