"""Routes: every agent's claims about the replicas it holds, merged into one table.

Law of this file: pure. An agent is the only source of claims about itself. It numbers every change, so that a
peer that knows number N can ask for the later ones. Claims about one group are ordered by (term,
configuration index), as safety 1 demands: neither the order of arrival nor a clock plays a part. No I/O, no
clock, no member list: who is alive is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.status import ReplicaStatus
from shoal.agent.peers.messages import PeerMessageError
from shoal.replication.roles.transitions import Role

MAX_CLAIMS_PER_DELTA = 2_000  # about half a megabyte; a longer difference comes in several answers
MAX_DELTA_BYTES = 4 << 20
MAX_REPLICAS = 255  # as many as a configuration may have: a topic that wants a replica everywhere
ROLES = ("leader", "follower", "learner")


class RouteError(PeerMessageError):
    """Bytes that are no delta."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One agent's words about a replica that it holds. Offsets and sizes are information, not placement."""

    group: GroupId
    role: str
    term: int
    configuration_index: int
    leader: str | None
    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    size_bytes: int = 0

    def same_placement(self, other: Claim | None) -> bool:
        """Equal but for offsets and size."""
        return other is not None and _placement(self) == _placement(other)


_numbers = attrgetter("log_start_offset", "high_watermark", "log_end_offset", "size_bytes")
_placement = attrgetter("group", "role", "term", "configuration_index", "leader", "voters", "learners")


def claim_of(agent_id: str, status: ReplicaStatus) -> Claim | None:
    """None for a replica that is lost: it holds nothing that anybody should come for.

    A candidate is a follower that knows no leader: an election is nobody's business but the replicas'.
    """
    if status.configuration is None:
        return None
    voters, learners = status.configuration.voting_agents, status.configuration.learning_agents
    role = "learner" if agent_id in learners else "follower"
    if status.role is Role.LEADER:
        role = "leader"
    index, leader = status.configuration.index, status.leader_agent_id
    return Claim(status.group, role, status.term, index, leader, voters, learners, *_numbers(status))


@dataclass(frozen=True, slots=True)
class Delta:
    """Changes of one agent's claims in (after, upto], in order of change; `claim` None: no longer held.

    `after` 0 means: everything held, forget what you knew. `more`: ask again from `upto`.
    """

    agent_id: str
    run: str
    after: int
    upto: int
    placement_version: int
    more: bool
    changes: tuple[tuple[GroupId, Claim | None], ...]


class OwnClaims:
    """The claims of this agent, each with the number of its last change.

    Removals must be remembered, so that a peer hears of them. When too many are, half are forgotten and a
    new run begins: every peer then asks for everything once.
    """

    MAX_REMOVED = 4_096

    def __init__(self, agent_id: str, boot: str) -> None:
        self.agent_id = agent_id
        self.counter = 0
        self.placement_version = 0
        self._boot = boot
        self._generation = 0
        self._claims: dict[GroupId, tuple[int, Claim | None]] = {}  # ordered by number: re-inserted on change
        self._removed = 0

    def __repr__(self) -> str:
        held = len(self._claims) - self._removed
        return (
            f"OwnClaims(run={self.run} counter={self.counter} placement={self.placement_version} held={held})"
        )

    @property
    def run(self) -> str:
        """Numbers mean something only within one run."""
        return f"{self._boot}.{self._generation}"

    def held(self) -> Iterator[Claim]:
        return (claim for _, claim in self._claims.values() if claim is not None)

    def set(self, claim: Claim) -> bool:
        """Record the state of one replica; True when its placement (not merely an offset) changed."""
        old = self._claims.get(claim.group, (0, None))[1]
        if old == claim:
            return False
        placement_changed = not claim.same_placement(old)
        self._record(claim.group, claim, placement_changed)
        return placement_changed

    def remove(self, group: GroupId) -> bool:
        """This agent no longer holds the group; True when it did."""
        if self._claims.get(group, (0, None))[1] is None:
            return False
        self._record(group, None, placement_changed=True)
        if self._removed > 2 * self.MAX_REMOVED:
            removed = [held for held, (_, claim) in self._claims.items() if claim is None]
            for old in removed[: -self.MAX_REMOVED]:
                del self._claims[old]
            self._removed = self.MAX_REMOVED
            self._generation += 1
        return True

    def _record(self, group: GroupId, claim: Claim | None, placement_changed: bool) -> None:
        self.counter += 1
        if placement_changed:
            self.placement_version = self.counter
        was_removed = group in self._claims and self._claims.pop(group)[1] is None
        self._removed += (claim is None) - was_removed
        self._claims[group] = (self.counter, claim)

    def delta(self, run: str, after: int, limit: int = MAX_CLAIMS_PER_DELTA) -> Delta:
        """Changes after number `after` of that run; all of them if the peer knows another run."""
        if run != self.run or after > self.counter:
            after = 0
        newer = []
        for group, (number, claim) in reversed(self._claims.items()):
            if number <= after:
                break
            newer.append((number, group, claim))
        newer.reverse()
        page = newer[:limit]
        more = len(newer) > limit
        upto = page[-1][0] if more else self.counter
        changes = tuple((group, claim) for _, group, claim in page)
        return Delta(self.agent_id, self.run, after, upto, self.placement_version, more, changes)


@dataclass(slots=True)
class _Known:
    run: str
    upto: int
    placement_version: int
    claims: dict[GroupId, Claim]


class RouteTable:
    """All agents' claims, as far as they are known here. `version` counts changes of placement."""

    def __init__(self) -> None:
        self.version = 0
        self._agents: dict[str, _Known] = {}
        self._holders: dict[GroupId, set[str]] = {}
        self._changed: set[GroupId] = set()

    def take_changed(self) -> set[GroupId]:
        """The groups whose placement somebody has claimed anew since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def known(self, agent_id: str) -> tuple[str, int]:
        """(run, number) to ask that agent from; ("", 0) when nothing is known."""
        known = self._agents.get(agent_id)
        return ("", 0) if known is None else (known.run, known.upto)

    def placement_known(self, agent_id: str) -> tuple[str, int]:
        """(run, placement version) as last heard: compared with what the agent gossips."""
        known = self._agents.get(agent_id)
        return ("", 0) if known is None else (known.run, known.placement_version if known.upto else 0)

    def apply(self, delta: Delta) -> bool:
        """Merge one delta; False when it does not follow what is known (then pull from known())."""
        known = self._agents.get(delta.agent_id)
        if delta.after == 0:
            fresh = _Known(delta.run, 0, 0, {})
            self._replace(delta.agent_id, fresh, delta)
            return True
        if known is None or known.run != delta.run or delta.after > known.upto:
            return False
        if delta.upto <= known.upto:
            return True
        changed = False
        for group, claim in delta.changes:
            changed |= self._set(delta.agent_id, known, group, claim)
        known.upto = delta.upto
        if not delta.more:
            known.placement_version = delta.placement_version
        if changed:
            self.version += 1
        return True

    def _replace(self, agent_id: str, fresh: _Known, delta: Delta) -> None:
        before = self._agents.get(agent_id)
        fresh.claims.update((group, claim) for group, claim in delta.changes if claim is not None)
        fresh.upto = delta.upto
        fresh.placement_version = 0 if delta.more else delta.placement_version
        old_claims = {} if before is None else before.claims
        for group in old_claims.keys() - fresh.claims.keys():
            self._drop_holder(group, agent_id)
        for group in fresh.claims:
            self._holders.setdefault(group, set()).add(agent_id)
        self._agents[agent_id] = fresh
        changed = old_claims.keys() - fresh.claims.keys()
        changed |= {
            group for group, claim in fresh.claims.items() if not claim.same_placement(old_claims.get(group))
        }
        self._changed |= changed
        if changed:
            self.version += 1

    def _set(self, agent_id: str, known: _Known, group: GroupId, claim: Claim | None) -> bool:
        old = known.claims.get(group)
        if claim is None:
            if old is not None:
                del known.claims[group]
                self._drop_holder(group, agent_id)
                self._changed.add(group)
            return old is not None
        known.claims[group] = claim
        self._holders.setdefault(group, set()).add(agent_id)
        if claim.same_placement(old):
            return False
        self._changed.add(group)
        return True

    def _drop_holder(self, group: GroupId, agent_id: str) -> None:
        holders = self._holders.get(group, set())
        holders.discard(agent_id)
        if not holders:
            self._holders.pop(group, None)

    def agents(self) -> list[str]:
        """Everybody whose claims are known."""
        return sorted(self._agents)

    def forget(self, agent_id: str) -> None:
        """The member is gone for good; what it held is somebody else's to claim."""
        known = self._agents.pop(agent_id, None)
        if known is None:
            return
        for group in known.claims:
            self._drop_holder(group, agent_id)
        self._changed |= known.claims.keys()
        self.version += 1

    def claims_of(self, agent_id: str) -> list[Claim]:
        """The claims of one agent, in a stable order."""
        known = self._agents.get(agent_id)
        return [] if known is None else [known.claims[group] for group in sorted(known.claims)]

    def claims_about(self, group: GroupId) -> dict[str, Claim]:
        """Agent id -> its claim, for every agent that holds the group."""
        return {agent: self._agents[agent].claims[group] for agent in sorted(self._holders.get(group, ()))}

    def holders(self) -> set[str]:
        """Agents that claims name as voters or learners of a group."""
        return {
            agent
            for known in self._agents.values()
            for claim in known.claims.values()
            for agent in (*claim.voters, *claim.learners)
        }

    def leadership(self, group: GroupId, is_live: Callable[[str], bool]) -> Claim | None:
        """The newest claim, whose `leader` is None when nobody leads. None: nobody claims anything.

        Claims are ordered by (term, configuration index), a leader's own claim first among equals: at most
        one leader exists per term, so equal claims agree. A leader that is not live is no leader. About
        itself an agent knows best: others that were not heard since may still name one that has stepped down.
        """
        claims = self.claims_about(group)
        led = [claim for claim in claims.values() if claim.leader is not None]
        if not led:
            order = attrgetter("configuration_index", "high_watermark")
            return max(claims.values(), key=order, default=None)
        best = max(
            led,
            key=lambda claim: (
                claim.term,
                claim.configuration_index,
                claim.role == "leader",
                claim.high_watermark,
            ),
        )
        assert best.leader is not None
        own = claims.get(best.leader)
        has_stepped_down = own is not None and own.role != "leader" and own.term >= best.term
        return best if is_live(best.leader) and not has_stepped_down else replace(best, leader=None)


# ---- deltas as bytes -----------------------------------------------------------------------------


def encode_delta(delta: Delta) -> bytes:
    """JSON; group and claim as flat lists, for their number."""
    document = {
        "agent": delta.agent_id,
        "run": delta.run,
        "after": delta.after,
        "upto": delta.upto,
        "placement": delta.placement_version,
        "more": delta.more,
        "changes": [_change_document(group, claim) for group, claim in delta.changes],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_delta(data: bytes) -> Delta:
    """Raises RouteError, and nothing else."""
    if len(data) > MAX_DELTA_BYTES:
        raise RouteError(f"a delta of {len(data)} bytes")
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise TypeError("an object is needed")
        return Delta(
            agent_id=_text(document["agent"]),
            run=_text(document["run"]),
            after=_natural(document["after"]),
            upto=_natural(document["upto"]),
            placement_version=_natural(document["placement"]),
            more=bool(document["more"]),
            changes=tuple(_change_from(item) for item in document["changes"][:MAX_CLAIMS_PER_DELTA]),
        )
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise RouteError(f"not a delta: {type(error).__name__}") from None


def encode_request(run: str, after: int) -> bytes:
    """Ask an agent for what changed since."""
    return json.dumps({"run": run, "after": after}).encode()


def decode_request(data: bytes) -> tuple[str, int]:
    """(run, after). Raises RouteError, and nothing else."""
    try:
        document: Mapping[str, Any] = json.loads(data[:1_024])
        return _text(document["run"], empty=True), _natural(document["after"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RouteError(f"not a request: {type(error).__name__}") from None


def _change_document(group: GroupId, claim: Claim | None) -> list[Any]:
    key: list[Any] = [group.topic_id.hex(), group.partition]
    if claim is None:
        return key
    _, role, *placement = _placement(claim)
    return [*key, ROLES.index(role), *placement, *_numbers(claim)]


def _change_from(item: Any) -> tuple[GroupId, Claim | None]:
    if not isinstance(item, list) or len(item) not in (2, 12):
        raise TypeError("a change has 2 or 12 fields")
    topic_id = bytes.fromhex(_text(item[0]))
    if len(topic_id) != 16:
        raise ValueError("a topic id has 16 bytes")
    group = GroupId(topic_id, _natural(item[1]))
    if len(item) == 2:
        return group, None
    role, term, configuration_index, leader, voters, learners, *numbers = item[2:]
    if _natural(role) >= len(ROLES):
        raise ValueError("an unknown role")
    return group, Claim(
        group,
        ROLES[role],
        _natural(term),
        _natural(configuration_index),
        None if leader is None else _text(leader),
        _names(voters),
        _names(learners),
        *map(_natural, numbers),
    )


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError("a whole number is needed")
    return value


def _text(value: Any, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > 64 or not (value or empty):
        raise TypeError("a short text is needed")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_REPLICAS:
        raise TypeError("a list of agents is needed")
    return tuple(_text(name) for name in value)
