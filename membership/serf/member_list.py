"""The member list, with each member's status: alive, suspect, leaving, left, failed.

Law of this file: SWIM's changes and Serf's intents become the status of members here, and nowhere else.
Nothing is sent from here; whether an intent was news is the answer, telling it on is the caller's business.

    alive --leave intent--> leaving --silence or dead--> left        alive --silence or dead--> failed
    failed --leave intent (force-leave)--> left                      any --alive claim--> alive
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from shoal.membership.config import GossipConfig
from shoal.membership.serf.events import LamportClock
from shoal.membership.serf.ready import EventKind, MemberChange, SerfMember, Status
from shoal.membership.swim.ready import Change, ChangeKind
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.serf import JoinIntent, LeaveIntent, decode_tags

MAX_RECENT_INTENTS = 1024
"""Intents about members not yet known; the oldest give way."""


class RecentIntent(NamedTuple):
    """`is_listed`: its time is of a peer's list."""

    leaves: bool
    ltime: int
    heard_ms: int
    is_listed: bool = False


def _is_newer(ltime: int, known_ltime: int, *, or_equal: bool) -> bool:
    return ltime > known_ltime or (or_equal and ltime == known_ltime)


class IntentOutcome(Enum):
    """What an intent was: nothing new, news to be told on, or a false word about ourselves to be undone."""

    OLD = auto()
    NEWS = auto()
    FALSE = auto()


class MemberList:
    """Members by name, and the Lamport clock of intents."""

    def __init__(self, config: GossipConfig) -> None:
        self._config = config
        self._members: dict[str, SerfMember] = {}
        self._recent_intents: dict[str, RecentIntent] = {}
        self.clock = LamportClock()
        self.changes: list[MemberChange] = []
        self.version = 0

    def __iter__(self) -> Iterator[SerfMember]:
        return iter(self._members.values())

    def get(self, name: str) -> SerfMember | None:
        return self._members.get(name)

    # Member status

    def on_change(self, change: Change, now_ms: int) -> None:
        match change.kind:
            case ChangeKind.JOIN:
                self._on_node_join(change, now_ms)
            case ChangeKind.LEAVE:
                self._on_node_leave(change, now_ms)
            case ChangeKind.CONFLICT:
                if (member := self._members.get(change.name)) is not None:
                    claimant = replace(member)
                    self._refresh(claimant, change)
                    self.changes.append(MemberChange(EventKind.CONFLICT, claimant))
            case ChangeKind.UPDATE | ChangeKind.SUSPECT | ChangeKind.REFUTED:
                member = self._members[change.name]
                self._refresh(member, change)
                suspected = change.kind is ChangeKind.SUSPECT
                if member.suspected != suspected:
                    member.suspected, member.since_ms = suspected, now_ms
                self._tell(EventKind.SUSPECTED if suspected else EventKind.UPDATED, member)

    def _on_node_join(self, change: Change, now_ms: int) -> None:
        member = self._members.get(change.name)
        if member is None:
            self._make_room()
            member = SerfMember(
                change.name, change.endpoint, {}, change.vsn, change.incarnation, Status.ALIVE, now_ms
            )
            self._members[change.name] = member
        self._refresh(member, change)
        member.suspected = False
        self._set_status(member, Status.ALIVE, now_ms)
        intent = self._recent_intents.pop(change.name, None)
        if intent is not None and intent.ltime >= member.status_ltime:
            member.status_ltime, member.is_ltime_listed = intent.ltime, intent.is_listed
            if intent.leaves:
                self._set_status(member, Status.LEAVING, now_ms)
        self._tell(EventKind.JOINED, member)

    def _on_node_leave(self, change: Change, now_ms: int) -> None:
        member = self._members[change.name]
        self._refresh(member, change)
        member.suspected = False
        if member.status == Status.LEAVING:
            self._set_status(member, Status.LEFT, now_ms)
            self._tell(EventKind.LEFT, member)
        elif member.status == Status.ALIVE:
            self._set_status(member, Status.FAILED, now_ms)
            self._tell(EventKind.FAILED, member)

    def _refresh(self, member: SerfMember, change: Change) -> None:
        member.endpoint, member.vsn, member.incarnation = change.endpoint, change.vsn, change.incarnation
        member.answered = member.answered or change.answered
        try:
            member.tags = decode_tags(change.meta)
        except WireError:
            member.tags = {}  # the node is a member all the same, as in Serf

    def _set_status(self, member: SerfMember, status: Status, now_ms: int) -> None:
        if member.status != status:
            member.status = status
            member.since_ms = now_ms

    def _tell(self, kind: EventKind, member: SerfMember) -> None:
        self.version += 1
        self.changes.append(MemberChange(kind, replace(member)))

    # Intents

    def on_join_intent(self, intent: JoinIntent, now_ms: int, *, told: bool = True) -> bool:
        """True when it was news and should be told on. `told`: as for on_leave_intent. The time in a list may
        be that of a leave, which comes here in a moment."""
        self.clock.witness(intent.ltime)
        member = self._members.get(intent.node)
        if member is None:
            return self._remember_intent(intent.node, RecentIntent(False, intent.ltime, now_ms, not told))
        if intent.ltime <= member.status_ltime:
            return False
        member.status_ltime, member.is_ltime_listed = intent.ltime, not told
        if member.status == Status.LEAVING:
            self._set_status(member, Status.ALIVE, now_ms)
            self._tell(EventKind.UPDATED, member)
        return True

    def on_leave_intent(
        self, intent: LeaveIntent, now_ms: int, *, leaving: bool, told: bool = True
    ) -> IntentOutcome:
        """`leaving`: we ourselves are, so that an intent about us is true. `told`: somebody sent it, and it
        was not made of a peer's list, whose times of members that left are greater with each exchange."""
        self.clock.witness(intent.ltime)
        member = self._members.get(intent.node)
        if member is None:
            news = self._remember_intent(intent.node, RecentIntent(True, intent.ltime, now_ms, not told))
            return IntentOutcome.NEWS if news else IntentOutcome.OLD
        if not _is_newer(intent.ltime, member.status_ltime, or_equal=told and member.is_ltime_listed):
            return IntentOutcome.OLD
        if intent.node == self._config.name and not leaving:
            return IntentOutcome.FALSE
        member.status_ltime, member.is_ltime_listed = intent.ltime, False
        if member.status == Status.ALIVE:
            self._set_status(member, Status.LEAVING, now_ms)
            self._tell(EventKind.UPDATED, member)
        elif member.status in (Status.FAILED, Status.LEFT) and told and not intent.prune:
            # It may have come back and gone again, and what says that it came is still on its way. Its next
            # life begins as leaving then, unless a newer join intent has told of a longer one.
            self._remember_intent(intent.node, RecentIntent(True, intent.ltime, now_ms))
        if member.status == Status.FAILED:
            member.status = Status.LEFT  # it has been gone since it failed, as in Serf
            self._tell(EventKind.LEFT, member)
        if intent.prune and member.status == Status.LEFT:
            self._erase(member)
        return IntentOutcome.NEWS

    def _remember_intent(self, name: str, intent: RecentIntent) -> bool:
        held = self._recent_intents.get(name)
        if held is not None:
            tells = intent.leaves and not intent.is_listed
            if not _is_newer(intent.ltime, held.ltime, or_equal=tells and held.is_listed):
                return False
        self._recent_intents.pop(name, None)
        self._recent_intents[name] = intent  # last in the order of insertion, which is the order of age
        if len(self._recent_intents) > MAX_RECENT_INTENTS:
            del self._recent_intents[next(iter(self._recent_intents))]
        return True

    # Keeping the list

    def reap(self, now_ms: int) -> None:
        """Drop members gone for long, and intents that nobody came for."""
        limits = {
            Status.FAILED: self._config.reconnect_timeout_ms,
            Status.LEFT: self._config.tombstone_timeout_ms,
        }
        for member in list(self._members.values()):
            limit_ms = limits.get(member.status)
            if limit_ms is not None and now_ms - member.since_ms > limit_ms:
                self._erase(member)
        horizon_ms = now_ms - self._config.recent_intent_timeout_ms
        for name in [name for name, held in self._recent_intents.items() if held.heard_ms < horizon_ms]:
            del self._recent_intents[name]

    def _erase(self, member: SerfMember) -> None:
        """Forget the member; SWIM may remember it as gone for a while, and would report
        its return as a join."""
        assert member.status in (Status.FAILED, Status.LEFT)
        del self._members[member.name]
        self._tell(EventKind.REAPED, member)

    def _make_room(self) -> None:
        """A flood of names that come and go must not grow the list: beyond the bound those gone longest are
        erased, and those that never answered before any that did."""
        if len(self._members) < self._config.max_members:
            return
        gone = [member for member in self._members.values() if member.status in (Status.FAILED, Status.LEFT)]
        gone.sort(key=lambda member: (member.answered, member.since_ms))
        for member in gone[: max(1, self._config.max_members // 8)]:
            self._erase(member)

    def check_invariants(self) -> None:
        assert len(self._recent_intents) <= MAX_RECENT_INTENTS
        for name, member in self._members.items():
            assert name == member.name
            assert not member.suspected or member.status in (Status.ALIVE, Status.LEAVING)
