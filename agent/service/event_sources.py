"""What is told as an event: members that come and go, leaders that change, replicas that move.

Law of this file: it compares what the member list and the routing table say now with what was told last,
and publishes the difference; it decides nothing. Gossip changes tags of progress all the time: that is no
event. A leader is one that gossip has not given up; silent links are not looked at, for nobody says when
they end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shoal.agent.durable.ids import GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.members import tags
from shoal.agent.members.roster import Roster
from shoal.agent.routing.table import RouteTable
from shoal.agent.service import documents
from shoal.agent.topics.catalog import Catalog
from shoal.membership.interface import Member, MemberEvent

WAIT_MS = 60_000
MEMBER_KINDS = {
    "joined": "joined",
    "suspected": "suspected",
    "failed": "failed",
    "left": "left",
    "updated": "updated",
    "reaped": "forgotten",
}
TAGS_OF_PROGRESS = frozenset((tags.TAG_PLACEMENT, tags.TAG_CATALOG, tags.TAG_TOPICS))


class Told(NamedTuple):
    """What listeners were told last of one partition."""

    topic: str
    leader: str | None
    term: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]


class EventSources:
    """Attach the cluster's tables once there are some."""

    def __init__(self, feed: EventFeed, roster: Roster, watch: Watch) -> None:
        self._feed = feed
        self._roster = roster
        self._watch = watch
        self._members: dict[str, Mapping[str, Any]] = {}
        self._groups: dict[GroupId, Told] = {}
        self._live: frozenset[str] = frozenset()
        self._unnamed: set[GroupId] = set()

    # ---- members ---------------------------------------------------------------------------------

    def on_member_event(self, event: MemberEvent) -> None:
        """Membership's on_event."""
        kind = MEMBER_KINDS.get(event.kind)
        member = event.member
        if kind is None or not tags.is_ours(member, self._roster.cluster, self._roster.cluster_id):
            return
        shown = _shown(member)
        if self._members.get(member.name) == shown and kind == "updated":
            return
        if kind == "forgotten":
            self._members.pop(member.name, None)
        else:
            self._members[member.name] = shown
        self._feed.publish(kind, {"member": shown})

    # ---- leaders and replicas --------------------------------------------------------------------

    async def run(self, routes: RouteTable, catalog: Callable[[], Catalog]) -> None:
        """Until cancelled: after every change of a table, tell what is different."""
        while True:
            self.look(routes, catalog())
            await self._watch.wait_next(WAIT_MS)

    def look(self, routes: RouteTable, catalog: Catalog) -> None:
        """Compare, for those groups only that may have changed."""
        dirty = routes.take_changed() | self._unnamed
        live = self._roster.live_agents()
        for agent in live ^ self._live:
            dirty.update(claim.group for claim in routes.claims_of(agent))
        self._live = live
        self._unnamed = set()
        for group in sorted(dirty):
            self._look_at(group, routes, catalog)

    def _look_at(self, group: GroupId, routes: RouteTable, catalog: Catalog) -> None:
        before = self._groups.get(group)
        leadership = routes.leadership(group, self._live.__contains__)
        name = documents.topic_name(group, catalog)
        if leadership is None:
            if before is not None:
                del self._groups[group]
                self._tell(group, Told(before.topic, None, before.term, (), ()), before)
            return
        if name is None and before is None:
            self._unnamed.add(group)  # claims travel faster than the catalog
            return
        topic = name if name is not None else self._groups[group].topic
        now = Told(topic, leadership.agent_id, leadership.term, leadership.voters, tuple(leadership.learners))
        self._groups[group] = now
        self._tell(group, now, before)

    def _tell(self, group: GroupId, now: Told, before: Told | None) -> None:
        where = {"topic": now.topic, "partition": group.partition, "term": now.term}
        if before is None or (now.voters, now.learners) != (before.voters, before.learners):
            document = {**where, "voters": list(now.voters), "learners": list(now.learners)}
            self._feed.publish("placement-changed", document)
        if before is None or (now.leader, now.term) != (before.leader, before.term):
            urls = self._roster.urls()
            leader_url = None if now.leader is None else urls.get(now.leader)
            previous = None if before is None else before.leader
            document = {**where, "leader": now.leader, "leader_url": leader_url, "previous_leader": previous}
            self._feed.publish("leader-changed", document)


def _shown(member: Member) -> Mapping[str, Any]:
    """The member as GET /v1/members shows it, but for what changes all the time."""
    document = documents.member_head(member)
    document["tags"] = {tag: value for tag, value in document["tags"].items() if tag not in TAGS_OF_PROGRESS}
    del document["incarnation"]  # grows with every tag of progress
    return document
