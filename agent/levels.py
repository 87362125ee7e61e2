"""Feature levels: what an agent understands of catalogs, logs, links and tags, as one number.

Law of this file: pure, and the only list. A cluster works at one level, which its catalog holds. An agent
understands a range of levels, and works only in a cluster whose level lies in it. Nothing is written or sent
that belongs to a level above the cluster's: until that is raised, the former version of Shoal may come back.
An agent reads everything of the levels that it understands. Each new thing belongs to a new level, here.

Compare CockroachDB's cluster version and Kafka's feature levels (KIP-584); decision 24 has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, NewType

Level = NewType("Level", int)
FIRST_LEVEL = Level(1)
MAX_LEVEL = 9_999
"""A tag, header or document with a larger number says no level."""


class AdditionKind(Enum):
    """Where an agent that does not know an addition would meet it."""

    CATALOG_COMMAND = "catalog command"
    TOPIC_SETTING = "topic setting"
    ENTRY_KIND = "kind of entry"
    CHECKPOINT = "version of checkpoints"
    LINK_FRAME = "link frame"
    LINK_MESSAGE = "link message"
    GOSSIP_TAG = "gossip tag"


class Addition(NamedTuple):
    """Something that agents of lower levels do not understand. `name`: as the code calls it."""

    level: Level
    kind: AdditionKind
    name: str
    sentence: str


def _additions(level: int, kind: AdditionKind, sentences: dict[str, str]) -> tuple[Addition, ...]:
    return tuple(Addition(Level(level), kind, name, sentence) for name, sentence in sentences.items())


ADDITIONS: tuple[Addition, ...] = (
    *_additions(
        1,
        AdditionKind.CATALOG_COMMAND,
        {
            "create": "makes a topic with its births",
            "change": "changes retention and segment settings of a topic",
            "delete": "ends a topic, which leaves a tombstone",
            "confirm": "says that a holder has deleted its data of a topic",
            "seal": "gives an empty cluster up for another",
            "epoch": "begins another lineage after a recovery by force",
            "born": "says that partitions were led for the first time",
            "rebirth": "gives partitions that nobody led other voters",
        },
    ),
    *_additions(
        1,
        AdditionKind.TOPIC_SETTING,
        {
            "kind": "is `log`",
            "partitions": "is the number of logs",
            "replication_factor": "is the number of voters of each partition, or `all`",
            "retention": "bounds a partition by age and bytes",
            "segment": "bounds a segment by age and bytes",
            "fsync": "says whether an append waits for the disk",
        },
    ),
    *_additions(
        1,
        AdditionKind.ENTRY_KIND,
        {
            "SCHEMA": "begins a segment with the Arrow schema",
            "DATA": "holds records",
            "NOOP": "is a leader's first entry of its term",
            "CONFIGURATION": "holds voters and learners",
            "CHECKPOINT": "holds the fold of the log before it",
            "TRIM": "says where the log begins",
        },
    ),
    *_additions(
        1,
        AdditionKind.CHECKPOINT,
        {"1": "has no elapsed time", "2": "has the time as the log counts it"},
    ),
    *_additions(
        1,
        AdditionKind.LINK_FRAME,
        {
            "HELLO": "greets, in the link version that both sides chose",
            "REFUSED": "says why a link is not wanted",
            "LIVENESS": "is a heartbeat, with the groups whose replicas have stopped",
            "GROUPS": "carries Raft's messages of many groups",
            "APPEND": "carries entries of one group",
            "REQUEST": "asks a peer",
            "RESPONSE": "answers a request",
        },
    ),
    *_additions(
        1,
        AdditionKind.LINK_MESSAGE,
        {
            "CATALOG_PULL": "asks for a piece of a newer catalog",
            "CATALOG_AWAIT": "waits until a peer has a version of the catalog",
            "CATALOG_HINT": "tells the version of the catalog",
            "CATALOG_CONFIRM": "confirms a deletion to the catalog's leader",
            "CATALOG_BORN": "tells the catalog's leader of births that are led",
            "CATALOG_KEPT": "asks for topics that the receiver's catalog does not know",
            "ROUTES_PULL": "asks for claims about groups",
            "ROUTES_HINT": "tells new claims",
            "GROUP_HOLD": "asks an agent to hold a replica",
            "GROUP_CONFIGURATION": "asks for the configuration of a group",
            "GROUP_POSITION": "asks where a replica's log ends",
            "GROUP_LOST": "says that a replica will never vote again",
            "SEGMENTS_OFFER": "offers a copy of a log",
            "SEGMENTS_PIECE": "asks for entries of a copy",
            "ENTRY": "asks for an entry that is damaged at the asker's",
            "CLOCK": "asks for the wall clock",
        },
    ),
    *_additions(
        1,
        AdditionKind.GOSSIP_TAG,
        {
            "v": "is the version of Shoal",
            "name": "is the name that people gave",
            "cl": "is the cluster's name",
            "cid": "is the cluster's id",
            "url": "is where HTTP and links are served",
            "fd": "is the failure domain",
            "w": "is the weight in placement",
            "dr": "says that the agent is drained",
            "boot": "is the run of the process",
            "pv": "is the version of the agent's claims",
            "cv": "is the version of the agent's catalog",
            "nt": "says whether the catalog has topics",
            "host": "is the DNS name to look the agent up by; members that do not know it use the URL",
            "lv": "is the range of levels; members of before levels pass over it",
        },
    ),
    *_additions(
        2,
        AdditionKind.CATALOG_COMMAND,
        {
            "level": "raises the cluster's level",
            "alter": "changes settings and the replication factor of a topic, if they are as expected",
        },
    ),
    *_additions(
        3,
        AdditionKind.CATALOG_COMMAND,
        {
            "group-create": "makes a consumer group of a topic",
            "group-change": "changes settings of a consumer group, if they are as expected",
            "group-delete": "ends a consumer group",
        },
    ),
    *_additions(
        3,
        AdditionKind.TOPIC_SETTING,
        {
            "retention.hold_for_groups": "keeps what a consumer group has not done",
            "retention.acknowledged": "drops what all consumer groups have done",
        },
    ),
    *_additions(3, AdditionKind.ENTRY_KIND, {"GROUP_STATE": "holds operations of consumer groups"}),
    *_additions(3, AdditionKind.CHECKPOINT, {"3": "has sections, each with type and length"}),
    *_additions(
        3,
        AdditionKind.LINK_MESSAGE,
        {
            "VIEW_RUNS": "names the runs of a view",
            "VIEW_PIECE": "asks for bytes of one",
            "LETTERS": "appends a dead letter at the leader of its partition",
            "LETTERS_READ": "asks for the dead letters of a partition",
        },
    ),
    *_additions(
        4,
        AdditionKind.TOPIC_SETTING,
        {"kind.timer": "is `timer`: groups see each record when it is due"},
    ),
    *_additions(
        5,
        AdditionKind.TOPIC_SETTING,
        {"kind.table": "is `table`: the newest record of each key is a row"},
    ),
    *_additions(
        6,
        AdditionKind.CATALOG_COMMAND,
        {
            "principal-put": "gives a principal roles and rules, if its version is as expected",
            "principal-delete": "ends a principal, with its tokens",
            "role-put": "gives a role rules, if its version is as expected",
            "role-delete": "ends a role that no principal has",
            "token-make": "makes a token of a principal, of which it has the hash",
            "token-revoke": "ends a token",
            "session-key": "makes a key that seals the sessions of browsers",
            "session-end": "ends the session of a browser",
        },
    ),
    *_additions(
        6,
        AdditionKind.LINK_MESSAGE,
        {
            "AUDIT": "appends records to the topic `_audit` at its leader",
            "LINK_RENEWAL": "asks the side that dialled a link to dial it anew",
        },
    ),
)


class LevelRange(NamedTuple):
    """The levels that an agent understands, both ends included."""

    lowest: Level
    highest: Level

    def __str__(self) -> str:
        return f"{self.lowest}-{self.highest}"

    def words(self) -> str:
        """For people."""
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest} to {self.highest}"

    def has(self, level: Level) -> bool:
        return self.lowest <= level <= self.highest


SUPPORTED = LevelRange(FIRST_LEVEL, max(addition.level for addition in ADDITIONS))
"""The levels of this version of Shoal."""
BEFORE_LEVELS = LevelRange(FIRST_LEVEL, FIRST_LEVEL)
"""Those of an agent that says nothing: it was built before there were levels."""
HOLD = "+hold"
"""Behind the range in the tag of an agent with --hold-level."""
_RANGE = re.compile(r"([1-9][0-9]{0,3})-([1-9][0-9]{0,3})")
_LEVELS = {(addition.kind, addition.name): addition.level for addition in ADDITIONS}


def level_of(kind: AdditionKind, name: str) -> Level:
    """The level that an addition belongs to. KeyError for one that stands in no level."""
    return _LEVELS[kind, name]


def is_known(kind: AdditionKind, name: str) -> bool:
    """Whether this version of Shoal has it, in some level."""
    return (kind, name) in _LEVELS


def range_from_text(text: str | None) -> LevelRange:
    """`1-2`, from a tag or a header of another agent. One that says nothing legible is of before levels."""
    match = _RANGE.fullmatch((text or "").removesuffix(HOLD))
    if match is None:
        return BEFORE_LEVELS
    lowest, highest = Level(int(match[1])), Level(int(match[2]))
    return LevelRange(lowest, highest) if lowest <= highest else BEFORE_LEVELS


def level_in(value: object) -> Level | None:
    """A level as a document has it; None for anything else."""
    return Level(value) if type(value) is int and 1 <= value <= MAX_LEVEL else None


def refusal(understood: LevelRange, level: Level) -> str | None:
    """Why an agent cannot work in a cluster of that level, and what to do; None where it can."""
    if understood.has(level):
        return None
    said = f"the cluster is at level {level}, and the agent understands {understood.words()}"
    if level > understood.highest:
        return f"{said}: install on its host the version of Shoal that the other members run"
    return f"{said}: install an older version of Shoal on its host first, and raise the level"


def too_low(subject: str, needed: Level, level: Level, why: str) -> str:
    """Why the cluster cannot do the subject. `why`: what keeps its level, and what raises it (outlook)."""
    return f"{subject} needs level {needed}, and the cluster is at level {level}: {why}"


SEE_LEVEL = "`shoal cluster level` says what keeps it there, and what raises it"
"""For those who do not know the members."""
RAISE = "`shoal cluster raise-level`"
NAMED_MAX = 8
"""Members that a sentence names."""


def outlook(document: Mapping[str, Any]) -> str:
    """The next change of the level, its reason, and what brings it about. `document`: of GET
    /v1/cluster/level."""
    level, possible = document["level"], document["possible"]
    members = [member for member in document["members"] if member["status"] != "left"]
    if possible is not None and possible > level:
        return _possible(document["members"], possible)
    highest = max((member["highest"] for member in members), default=level)
    lacking = [member for member in members if member["highest"] <= level]
    if highest <= level or not lacking:
        return "the highest that its members understand"
    said = f"{_named(lacking)} must be upgraded before it can rise to {highest}"
    away = [_name(member) for member in lacking if member["status"] not in _PRESENT]
    if not away:
        return said
    return f"{said}; `shoal cluster raise-level --without {away[0]}` leaves out a host that is gone for good"


_PRESENT = ("alive", "suspect", "leaving")


def _possible(members: Sequence[Mapping[str, Any]], possible: int) -> str:
    """Every member that has not left understands a higher level."""
    holders = [member for member in members if member["holds"]]
    if holders:
        return f"held by {_named(holders)} (--hold-level); {RAISE} raises it to {possible}"
    missed = [
        member
        for member in members
        if member["status"] == "left" and not member["lowest"] <= possible <= member["highest"]
    ]
    if missed:  # stopped in order, and did not understand the level then
        waited = f"{_named(missed)} may come back with the former version (--replace-after)"
        return f"{waited}; {RAISE} raises it to {possible} without waiting"
    return f"every member understands {possible}; it rises within a minute, and by {RAISE} at once"


def _named(members: Sequence[Mapping[str, Any]]) -> str:
    more = f" and {len(members) - NAMED_MAX} more" if len(members) > NAMED_MAX else ""
    return ", ".join(_name(member) for member in members[:NAMED_MAX]) + more


def _name(member: Mapping[str, Any]) -> str:
    return str(member["name"] or member["id"])


RAISE_AFTER_MS = 60_000
"""Every member understands a level for so long before the cluster takes it: one upgrade is undone in less."""


class RaiseTimer:
    """When the catalog's leader may raise the level by itself."""

    def __init__(self) -> None:
        self._target: Level | None = None
        self._since_ms = 0

    def __repr__(self) -> str:
        return f"RaiseTimer(target={self._target} since_ms={self._since_ms})"

    def look(
        self, now_ms: int, level: Level, understood: Collection[LevelRange], *, held: bool, is_new: bool
    ) -> Level | None:
        """The level to take now. `understood`: by each member that has not left. `held`: somebody wants the
        level to stay. `is_new`: the cluster has no history that a former version could come back to."""
        target = common_level(understood)
        if held or target is None or target <= level:
            self._target = None
            return None
        if target != self._target:
            self._target, self._since_ms = target, now_ms
        return target if is_new or now_ms - self._since_ms >= RAISE_AFTER_MS else None


def common_level(understood: Collection[LevelRange]) -> Level | None:
    """The highest level that all of them understand."""
    if not understood:
        return None
    target = min(levels.highest for levels in understood)
    return target if all(levels.has(target) for levels in understood) else None
