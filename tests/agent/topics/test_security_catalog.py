"""Principals, roles and tokens in the catalog: agents that follow its log, its copies or its file agree."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.agent.levels import Level
from shoal.agent.security import principals as principals_module
from shoal.agent.security.access import ANONYMOUS, AskedBy, Place
from shoal.agent.security.documents import OPERATIONS
from shoal.agent.security.needs import ACTIONS, Need
from shoal.agent.security.principals import (
    MAX_SECURITY_COST,
    TOKENS_MAX,
    DeletePrincipal,
    DeleteRole,
    MakeToken,
    PutPrincipal,
    PutRole,
    RevokeToken,
    Security,
    SecurityCommand,
)
from shoal.agent.security.rules import allowed, rules_from_texts
from shoal.agent.security.sessions import EndSession, MakeSessionKey
from shoal.agent.topics import catalog as catalog_module
from shoal.agent.topics.catalog import BeginEpoch, Catalog, Command, CreateTopic, RaiseLevel
from shoal.agent.topics.catalog_codec import decode_command, encode_command, level_of_command
from shoal.agent.topics.catalog_pull import Copy, Piece
from shoal.agent.topics.entries import CatalogError
from shoal.errors import ShoalError
from tests.agent.topics.test_catalog_service import SELF, Fixture, entry

SIX = Level(6)
BY = AskedBy("ann", "token", "127.0.0.1", 1_000, "r")
NAMES = ("ann", "bob", ANONYMOUS)
ROLES = ("clerk", "chief")
TEXTS = ("topic:a*=read", "topic:b=write", "group:a/g=consume", "cluster=admin", "cluster=describe")
TOPICS = ("a", "ab", "b", "a/g", "")


def commands_of(state: Security, rng: random.Random, at_ms: int) -> SecurityCommand:
    """Any that clients may propose, most of them for the version that there is."""
    by = BY._replace(at_ms=at_ms, principal=rng.choice(NAMES), proof=rng.choice(("token", "open")))
    name, role = rng.choice(NAMES), rng.choice(ROLES)
    rules = rules_from_texts(rng.sample(TEXTS, rng.randrange(3)))
    roles = tuple(rng.sample((*ROLES, "admin", "viewer"), rng.randrange(3)))
    principal, its_role = state.principals.get(name), state.roles.get(role)
    version: Place | None = None if principal is None else principal.version
    its_version: Place | None = None if its_role is None else its_role.version
    if rng.random() < 0.1:
        version, its_version = its_version, version
    number = rng.randrange(8)
    newest = state.sessions.keys[0].id if state.sessions.keys and rng.random() < 0.9 else None
    expires_ms = None if rng.random() < 0.5 else at_ms + rng.randrange(500)
    made: tuple[SecurityCommand, ...] = (
        PutPrincipal(name, version, roles, rules, by),
        DeletePrincipal(name, version or (0, 0), by),
        PutRole(role, its_version, rules, by),
        DeleteRole(role, its_version or (0, 0), by),
        MakeToken(name, "abcdefg" + "abcdefgh"[number], bytes([number]) * 32, expires_ms, by),
        RevokeToken("abcdefg" + "abcdefgh"[number], by),
        MakeSessionKey("key" + "abcdefgh"[number] * 5, bytes([number]) * 32, newest, by),
        EndSession("abcdefgh"[number] * 16, name, at_ms + rng.randrange(500), by),
    )
    return rng.choice((*made, made[0], made[2], made[4], made[5]))


def verdicts(catalog: Catalog, now_ms: int) -> list[object]:
    """Of every token on everything, and all that the state would say of the next command."""
    state = catalog.security
    found: list[object] = [state.is_settled, state.changed, sorted(state.principals), sorted(state.roles)]
    for number in range(8):
        known = state.token(bytes([number]) * 32)
        found.append(None if known is None else (known[0], known[1].is_live(now_ms)))
    found.append([key.secret for key in state.sessions.keys])
    for name in NAMES:
        ids = ("a" * 16, "b" * 16, "c" * 16)
        places = ((0, 0), state.changed)
        found.append([state.sessions.has_ended(one, name, place) for one in ids for place in places])
        rules = state.rules_of(name)
        for kind, actions in ACTIONS.items():
            found.append(
                [allowed(rules, Need(action, kind), topic) for action in actions for topic in TOPICS]
            )
    return found


def copied(catalog: Catalog, piece_bytes: int = 300) -> Catalog:
    """As a new agent gets it: in pieces."""
    data = catalog.to_bytes()
    copy = Copy(Catalog().version)
    while (state := copy.state()) is None:
        position = len(copy._data)
        piece = Piece(catalog.version, len(data), data[position : position + piece_bytes])
        copy.add(piece.to_bytes())
    return Catalog.from_bytes(state)


def run(seed: int, count: int = 60) -> None:
    """One log; agents that apply all of it, that go on from their own file after the log was trimmed, and
    that come anew in the middle. At each place of the log all have the same state, bytes and verdicts."""
    rng = random.Random(seed)
    leader = Catalog()
    leader.apply(0, RaiseLevel(SIX))
    agents = {"follows": copied(leader), "restarts": copied(leader), "is behind": copied(leader)}
    late: list[tuple[int, Command]] = []
    now_ms = 1_000
    for _ in range(count):
        now_ms += rng.randrange(300)
        if rng.random() < 0.02:
            command: Command = BeginEpoch(leader.epoch + (1 << 32), leader.digest())
        elif rng.random() < 0.1:
            command = CreateTopic(entry(rng.randrange(200)))
        else:
            command = commands_of(leader.security, rng, now_ms)
        offset, value = leader.offset, encode_command(command)
        outcome = leader.apply(offset, command)
        leader.check_invariants()
        late.append((offset, decode_command(value)))
        for name, agent in agents.items():
            if name == "restarts" and rng.random() < 0.3:
                agents[name] = agent = Catalog.from_bytes(agent.to_bytes())
            if name != "is behind":
                assert agent.apply(offset, decode_command(value)) == outcome, (name, command)
        if rng.random() < 0.2:  # it catches up by the log, or by a copy where the log was trimmed
            behind = agents["is behind"]
            for place, missed in late:
                behind.apply(place, missed)
            late.clear()
        elif rng.random() < 0.1:
            agents["is behind"] = copied(leader)
            late.clear()
        everywhere = [agent for name, agent in agents.items() if name != "is behind" or not late]
        for agent in (*everywhere, copied(leader)):
            assert verdicts(agent, now_ms) == verdicts(leader, now_ms)
            assert (agent.to_bytes(), agent.version) == (leader.to_bytes(), leader.version)


@given(st.integers(0, 2**32))
@example(0)
@settings(max_examples=12)
def test_all_agents_give_the_same_verdicts_at_the_same_place_of_the_log(seed: int) -> None:
    """With restarts, trimmed logs, new agents and recoveries by force."""
    run(seed, 40)


def lose_revocations() -> list[tuple[object, str, object]]:
    """A copy of the state has the tokens that it had when it was first written."""
    written = catalog_module.state_document
    first: dict[str, list[object]] = {}

    def mutated(state: Security) -> dict[str, object]:
        document = written(state)
        for item in document["principals"]:
            known = first.setdefault(item["name"], [])
            known += [token for token in item["tokens"] if token not in known]
            item["tokens"] = list(known)[-TOKENS_MAX:]
        return document

    return [(catalog_module, "state_document", mutated)]


def lose_the_settling() -> list[tuple[object, str, object]]:
    """A copy does not say that the first token counts no more."""
    written = catalog_module.state_document
    return [(catalog_module, "state_document", lambda state: {**written(state), "settled": False})]


def judge_by_the_own_clock() -> list[tuple[object, str, object]]:
    """Whether a token has expired is asked of the agent that applies, not of the command."""
    clock = iter(range(0, 1 << 40, 997))
    return [(principals_module.TokenEntry, "is_live", lambda *_: next(clock) % 3 > 0)]


def lose_ended_sessions() -> list[tuple[object, str, object]]:
    """A copy of the state has the keys of sessions, and not which were ended."""
    written = catalog_module.state_document

    def mutated(state: Security) -> dict[str, object]:
        document = written(state)
        if "sessions" in document:
            document["sessions"] = {**document["sessions"], "ended": {}}
        return document

    return [(catalog_module, "state_document", mutated)]


def forget_versions() -> list[tuple[object, str, object]]:
    """Roles come back from a copy as if they had never been changed."""
    written = catalog_module.state_from

    def mutated(value: object) -> Security:
        state = written(value)
        state.roles = {name: replace(role, version=(0, 0)) for name, role in state.roles.items()}
        return state

    return [(catalog_module, "state_from", mutated)]


@pytest.mark.parametrize(
    "mutant",
    [lose_revocations, lose_the_settling, lose_ended_sessions, judge_by_the_own_clock, forget_versions],
)
def test_faults_are_found(
    mutant: Callable[[], list[tuple[object, str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same runs, with a deliberate fault, do not pass."""
    for owner, name, value in mutant():
        monkeypatch.setattr(owner, name, value)
    with pytest.raises((AssertionError, CatalogError)):
        collections.deque(map(run, range(20)), maxlen=0)


# ---- bytes -------------------------------------------------------------------------------------------------


def test_a_catalog_without_principals_is_written_as_before_there_were_any() -> None:
    """A former version reads it, while the level is below."""
    assert "security" not in json.loads(Catalog(offset=7).to_bytes())


@pytest.mark.parametrize("operation", sorted(OPERATIONS.values()))
async def test_commands_are_refused_below_their_level(operation: str) -> None:
    """Not every member may understand them: nothing is appended."""
    rng, state = random.Random(1), Security()
    while OPERATIONS[type(command := commands_of(state, rng, 1))] != operation:
        pass
    assert level_of_command(command) == json.loads(encode_command(command))["v"] == SIX
    fixture = Fixture((SELF,), Catalog(level=Level(5)))
    fixture.groups.on_append = lambda _: pytest.fail("it was appended")
    with pytest.raises(ShoalError, match="needs level 6") as caught:
        await fixture.service.propose(command, 50)
    assert caught.value.code == "level-too-low"


@given(st.integers(0, 2**32), st.data())
def test_a_damaged_command_or_state_is_refused_with_the_one_error(seed: int, data: st.DataObject) -> None:
    """Whatever field has whatever value."""
    rng = random.Random(seed)
    catalog = Catalog()
    for offset in range(6):
        catalog.apply(offset, commands_of(catalog.security, rng, 1_000))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
    )
    command = json.loads(encode_command(commands_of(catalog.security, rng, 1_000)))
    command[data.draw(st.sampled_from(sorted(set(command) - {"v", "op"})))] = data.draw(junk)
    with contextlib.suppress(CatalogError):
        assert level_of_command(decode_command(json.dumps(command).encode())) == SIX
    document = json.loads(catalog.to_bytes())
    if "security" in document:
        document["security"][data.draw(st.sampled_from(sorted(document["security"])))] = data.draw(junk)
        with contextlib.suppress(CatalogError):
            Catalog.from_bytes(json.dumps(document).encode())


@given(
    st.text(max_size=40),
    st.lists(st.sampled_from(("topic:" + "t" * 249 + "*=*", "cluster=*", "group:a/b=consume")), max_size=3),
    st.integers(1, 2**62 - 1),
)
def test_principals_and_roles_cost_no_less_than_their_bytes(
    maker: str, texts: list[str], number: int
) -> None:
    """With the largest numbers, and makers whose names are of any character."""
    rules = rules_from_texts(texts)
    by = BY._replace(principal=maker, at_ms=number)
    catalog = Catalog(offset=number, epoch=number)
    catalog.apply(number, PutRole("clerk", None, rules, by))
    empty = len(catalog.to_bytes()) - catalog.security.cost
    for command in (
        PutRole("r" * 64, None, rules, by),
        PutPrincipal("p" * 128, None, ("clerk", "viewer"), rules, by),
        MakeToken("p" * 128, "a" * 8, os.urandom(32), number * 2, by),
        MakeToken("p" * 128, "b" * 8, os.urandom(32), number * 2, by),
    ):
        assert catalog.apply(catalog.offset, command) == "done"
        assert decode_command(encode_command(command)) == command
        assert len(catalog.to_bytes()) - catalog.security.cost <= empty
    assert Catalog.from_bytes(catalog.to_bytes()) == catalog


def test_topics_and_principals_have_room_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full catalog takes principals, and one that is full of principals takes topics."""
    catalog = Catalog()
    catalog.apply(0, PutPrincipal("ann", None, (), (), BY))
    monkeypatch.setattr(principals_module, "MAX_SECURITY_COST", catalog.security.cost)
    assert catalog.apply(1, PutPrincipal("bob", None, (), (), BY)) == "full"
    assert catalog.apply(2, CreateTopic(entry())) == "done"
    monkeypatch.setattr(principals_module, "MAX_SECURITY_COST", MAX_SECURITY_COST)
    monkeypatch.setattr(catalog_module, "MAX_COST", catalog.cost)
    assert catalog.apply(3, CreateTopic(entry(2))) == "full"
    assert catalog.apply(4, PutPrincipal("bob", None, (), (), BY)) == "done"
    catalog.check_invariants()
