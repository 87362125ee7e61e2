"""Changes that become events and log lines: members that come and go, leaders that change, replicas that
move.

Law of this file: it compares the member list and the routing table with the state told last, and publishes
the difference. cluster_news.py decides which changes become log lines. Gossip changes tags of progress all
the time: that is no event. A leader is one that gossip has not given up; silent links are not looked at, for
nobody says when they end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.log_lines.cluster_news import ClusterNews, PartitionView
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.schema import Facts, about, partition_facts
from shoal.agent.members import tags
from shoal.agent.members.roster import Roster
from shoal.agent.routing.table import RouteTable
from shoal.agent.service import documents
from shoal.agent.service.group_events import GroupEvents
from shoal.agent.topics.catalog import Catalog
from shoal.membership.interface import Member, MemberEvent

WAIT_MS = 60_000
MEMBER_KINDS = {kind: kind for kind in ("joined", "suspected", "failed", "left", "updated")}
MEMBER_KINDS["reaped"] = "forgotten"
TAGS_OF_PROGRESS = frozenset((tags.TAG_PLACEMENT, tags.TAG_CATALOG, tags.TAG_TOPICS))
DELETED = PartitionView(None, is_mine=False, missing=(), is_concern=False, term=0)

logger = logging.getLogger("shoal.agent")


class AnnouncedState(NamedTuple):
    """The state of one partition that listeners were told last."""

    topic: str
    leader: str | None
    term: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]


class EventSources:
    """run() once there is a cluster; what happens to members before is logged then."""

    def __init__(self, feed: EventFeed, roster: Roster, watch: Watch, now_ms: Callable[[], int]) -> None:
        self.feed = feed
        self._roster = roster
        self._watch = watch
        self._now_ms = now_ms
        self.news = ClusterNews()
        self.groups = GroupEvents(feed, now_ms)
        self._members: dict[str, Mapping[str, Any]] = {}
        self._groups: dict[GroupId, AnnouncedState] = {}
        self._live: frozenset[str] = frozenset()
        self._unnamed: set[GroupId] = set()

    # ---- members ---------------------------------------------------------------------------------

    def on_member_event(self, event: MemberEvent) -> None:
        kind = MEMBER_KINDS.get(event.kind)
        member = event.member
        if kind is None or not tags.is_ours(member, self._roster.cluster, self._roster.cluster_id):
            return
        self._note_member(member, is_forgotten=kind == "forgotten")
        shown = _shown(member)
        if self._members.get(member.name) == shown and kind == "updated":
            return
        if kind == "forgotten":
            self._members.pop(member.name, None)
        else:
            self._members[member.name] = shown
        self.feed.publish(kind, {"member": shown})

    def _note_member(self, member: Member, *, is_forgotten: bool) -> None:
        if member.name == self._roster.agent_id or not tags.is_shoal(member):
            return
        if is_forgotten:
            self.news.forget_member(member.name)
        else:
            self.news.member(member.name, agent_name(member.name), member.status, self._now_ms())

    # ---- leaders and replicas --------------------------------------------------------------------

    async def run(self, routes: RouteTable, catalog: Callable[[], Catalog]) -> None:
        """Until cancelled: after every change of a table, tell what is different."""
        while True:
            self.look(routes, catalog())
            self.groups.look(catalog())
            await self._watch.wait_next(self.log_what_is_due())

    def log_what_is_due(self) -> int:
        """In how many milliseconds to look again at the latest."""
        now_ms = self._now_ms()
        for line in self.news.lines(now_ms):
            facts: Facts = {"total": line.total}
            if line.event.startswith("member-"):
                facts["members"] = line.names
            else:
                facts["partitions"] = line.names
            if line.total == 1 and "partitions" in facts:
                facts |= partition_facts(line.names[0])
            if line.term is not None:
                facts["term"] = line.term
            getattr(logger, line.level)("%s", line.text, extra=about(line.event, **facts))
        deadline_ms = self.news.deadline_ms()
        return WAIT_MS if deadline_ms is None else min(WAIT_MS, max(1, deadline_ms - now_ms))

    def look(self, routes: RouteTable, catalog: Catalog) -> None:
        """Compare, for those groups only that may have changed."""
        dirty = routes.take_changed() | self._unnamed
        live = self._roster.live_agents()
        if changed := live ^ self._live:
            dirty.update(claim.group for agent in changed for claim in routes.claims_of(agent))
            # One that dies early is known as a voter by the leader's claim alone.
            dirty.update(group for group, told in self._groups.items() if not changed.isdisjoint(told.voters))
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
                self.news.partition(_where(group, before), DELETED, self._now_ms())
                self._tell(group, AnnouncedState(before.topic, None, before.term, (), ()), before)
            return
        if name is None and before is None:
            self._unnamed.add(group)  # claims travel faster than the catalog
            return
        topic = name if name is not None else self._groups[group].topic
        now = AnnouncedState(
            topic, leadership.leader, leadership.term, leadership.voters, tuple(leadership.learners)
        )
        self._groups[group] = now
        self.news.partition(_where(group, now), self._view(now, is_deleted=name is None), self._now_ms())
        self._tell(group, now, before)

    def _view(self, now: AnnouncedState, *, is_deleted: bool) -> PartitionView:
        """The voters tell that there is no leader; everybody does where all of these are gone."""
        own = self._roster.agent_id
        missing = tuple(agent_name(voter) for voter in now.voters if voter not in self._live)
        tells = own in now.voters or len(missing) == len(now.voters)
        leader = None if now.leader is None else agent_name(now.leader)
        return PartitionView(leader, now.leader == own, missing, tells and not is_deleted, now.term)

    def _tell(self, group: GroupId, now: AnnouncedState, before: AnnouncedState | None) -> None:
        where = {"topic": now.topic, "partition": group.partition, "term": now.term}
        if before is None or (now.voters, now.learners) != (before.voters, before.learners):
            document = {**where, "voters": list(now.voters), "learners": list(now.learners)}
            self.feed.publish("placement-changed", document)
        if before is None or (now.leader, now.term) != (before.leader, before.term):
            urls = self._roster.urls()
            leader_url = None if now.leader is None else urls.get(now.leader)
            previous = None if before is None else before.leader
            document = {**where, "leader": now.leader, "leader_url": leader_url, "previous_leader": previous}
            self.feed.publish("leader-changed", document)


def _where(group: GroupId, told: AnnouncedState) -> str:
    return told.topic if group == CATALOG_GROUP else f"{told.topic}/{group.partition}"


def _shown(member: Member) -> Mapping[str, Any]:
    """The member as GET /v1/members shows it, but for what changes all the time."""
    document = documents.member_head(member)
    document["tags"] = {tag: value for tag, value in document["tags"].items() if tag not in TAGS_OF_PROGRESS}
    del document["incarnation"]  # grows with every tag of progress
    return document
