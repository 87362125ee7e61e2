"""The audit's core in virtual time: what is written, what is counted, and that nothing secret is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.agent.security.access import AskedBy, Identity, Proof
from shoal.agent.security.audit import (
    ADDRESSES_MAX,
    BUFFERED_MAX,
    CHANGES_MAX,
    LOGIN_AGAIN_MS,
    LOGINS_MAX,
    LOGINS_PER_SECOND_MAX,
    REFUSALS_PER_SECOND_MAX,
    TEXT_CHARACTERS_MAX,
    AuditTrail,
    Happening,
    ShownLogin,
    happening,
    login_of,
    told,
)
from shoal.agent.security.principals import (
    DeletePrincipal,
    DeleteRole,
    MakeToken,
    PutPrincipal,
    PutRole,
    RevokeToken,
    SecurityCommand,
)
from shoal.agent.security.sessions import EndSession, MakeSessionKey
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token

NOW_MS = 1_764_300_000_000
ALL = 10 * BUFFERED_MAX
ANN = Identity("ann", Proof.TOKEN)
BY = AskedBy("ann", "token", "10.0.0.7", NOW_MS, "0123456789abcdef")
TOKEN = make_token(b"\1" * TOKEN_ID_BYTES, b"\2" * SECRET_BYTES)


def event(address: str = "10.0.0.7", outcome: str = "forbidden", resource: str = "topic:orders") -> Happening:
    return happening(ANN, address, "describeTopic", resource, outcome)


def taken(trail: AuditTrail, now_ms: int) -> list[dict[str, Any]]:
    return [json.loads(text) for text in trail.take(now_ms, ALL)]


def test_a_record_tells_who_from_where_what_and_which_outcome() -> None:
    """Each kind, with the agent and its time."""
    trail = AuditTrail("herring")
    trail.refused(event(), NOW_MS)
    trail.changed(event(outcome="done"), NOW_MS + 1)
    trail.logged_in(b"digest", event(outcome="done"), NOW_MS + 2)
    found = taken(trail, NOW_MS + 3)
    assert [record["kind"] for record in found] == ["refusal", "change", "login"]
    assert found[0] == {
        "time": "2025-11-28T03:20:00.000000Z",
        "agent": "herring",
        "kind": "refusal",
        "principal": "ann",
        "proof": "token",
        "address": "10.0.0.7",
        "operation": "describeTopic",
        "resource": "topic:orders",
        "outcome": "forbidden",
    }
    assert taken(trail, NOW_MS + 4) == []


def test_a_flood_of_refusals_is_counted_and_told_when_its_second_is_over() -> None:
    """At most so many a second and address; another address keeps its own."""
    trail = AuditTrail("herring")
    for number in range(REFUSALS_PER_SECOND_MAX + 900):
        trail.refused(event("10.0.0.66"), NOW_MS + number // 2)
    trail.refused(event("10.0.0.7"), NOW_MS + 500)
    found = taken(trail, NOW_MS + 999)
    assert [record["kind"] for record in found] == ["refusal"] * (REFUSALS_PER_SECOND_MAX + 1)
    assert trail.has_news
    assert trail.left_out == 900
    (left,) = taken(trail, NOW_MS + 1_000)
    assert (left["kind"], left["address"], left["count"]) == ("left-out", "10.0.0.66", 900)
    assert taken(trail, NOW_MS + 3_000) == []
    assert not trail.has_news


def test_what_is_only_counted_needs_no_words() -> None:
    """One of too many counts as if it had been told; before that nothing is counted."""
    trail, other = AuditTrail("herring"), AuditTrail("herring")
    for _ in range(REFUSALS_PER_SECOND_MAX):
        assert not trail.only_counted("10.0.0.7", NOW_MS)
        trail.refused(event(), NOW_MS)
        other.refused(event(), NOW_MS)
    for _ in range(3):
        assert trail.only_counted("10.0.0.7", NOW_MS)
        other.refused(event(), NOW_MS)
    assert not trail.only_counted("10.0.0.8", NOW_MS)
    assert trail.left_out == other.left_out == 3
    assert taken(trail, NOW_MS + 1_000) == taken(other, NOW_MS + 1_000)
    assert not trail.only_counted("10.0.0.7", NOW_MS + 1_000)


def test_the_next_second_of_a_flood_is_written_again() -> None:
    """Also where nobody takes in between, and where the clock goes back."""
    trail = AuditTrail("herring")
    for second in (0, 1, -5):
        for _ in range(REFUSALS_PER_SECOND_MAX + 1):
            trail.refused(event(), NOW_MS + second * 1_000)
    kinds = [record["kind"] for record in taken(trail, NOW_MS + 10_000)]
    assert kinds.count("refusal") == 3 * REFUSALS_PER_SECOND_MAX
    assert kinds.count("left-out") == 3


def test_addresses_beyond_a_bound_are_counted_together() -> None:
    """Somebody with a million addresses fills no memory, and not the topic either."""
    trail = AuditTrail("herring")
    for number in range(ADDRESSES_MAX + 500):
        trail.refused(event(f"fd00::{number:x}"), NOW_MS)
    found = taken(trail, NOW_MS + 1_000)
    assert sum(record["kind"] == "refusal" for record in found) == ADDRESSES_MAX + REFUSALS_PER_SECOND_MAX
    assert [record["count"] for record in found if record["kind"] == "left-out"] == [400]


def test_a_full_buffer_leaves_out_and_says_how_many() -> None:
    """Nothing waits for the topic but a bounded number of records."""
    trail = AuditTrail("herring")
    for _ in range(BUFFERED_MAX + 7):
        trail.changed(event(outcome="done"), NOW_MS)
    assert trail.left_out == 7
    first = trail.take(NOW_MS, BUFFERED_MAX - 1)
    assert len(first) == BUFFERED_MAX - 1
    last = taken(trail, NOW_MS)
    assert [record["kind"] for record in last] == ["change", "left-out"]
    assert last[1]["count"] == 7
    assert not trail.has_news


@pytest.mark.parametrize("flood", ["refusals", "logins"])
def test_no_flood_leaves_out_a_change(flood: str) -> None:
    """However many addresses or credentials somebody has, while the topic takes nothing."""
    trail = AuditTrail("herring")
    for number in range(2 * BUFFERED_MAX):
        if flood == "refusals":
            trail.refused(event(f"fd00::{number % ADDRESSES_MAX:x}"), NOW_MS)
        else:
            trail.logged_in(number.to_bytes(16, "big"), event(outcome="done"), NOW_MS)
    trail.changed(event(outcome="done"), NOW_MS)
    kinds = [record["kind"] for record in taken(trail, NOW_MS)]
    assert kinds.count("change") == 1
    assert kinds[-1] == "left-out"


def test_a_login_is_told_once_in_a_while() -> None:
    """By the digest of its credential, at most so many of which are remembered; a clock may go back."""
    trail = AuditTrail("herring")
    login = login_of(f"Bearer {TOKEN.reveal()}", None, "10.0.0.7")
    assert login is not None
    assert login != login_of(None, TOKEN.reveal(), "10.0.0.7")
    assert login != login_of(f"Bearer {TOKEN.reveal()}", None, "10.0.0.8")
    assert login_of(None, None, "10.0.0.7") is None
    assert not trail.login_known_until_ms(login, NOW_MS)
    trail.logged_in(login, event(outcome="done"), NOW_MS)
    assert trail.login_known_until_ms(login, NOW_MS + LOGIN_AGAIN_MS - 1) == NOW_MS + LOGIN_AGAIN_MS
    assert not trail.login_known_until_ms(login, NOW_MS + LOGIN_AGAIN_MS)
    assert not trail.login_known_until_ms(login, NOW_MS - 1)
    for number in range(LOGINS_MAX):
        trail.logged_in(number.to_bytes(16, "big"), event(outcome="done"), NOW_MS)
    assert not trail.login_known_until_ms(login, NOW_MS)


@pytest.mark.parametrize("proof", ["token", "session"])
def test_a_flood_of_browsers_logins_is_counted(proof: str) -> None:
    """Of one token, or of the sessions that it makes. A token that was not seen here is told all the same,
    and so is the login of another address."""
    trail = AuditTrail("a")
    count = LOGINS_PER_SECOND_MAX + 7 + (proof == "token")  # a token's first login is one of any client
    for number in range(count):
        login = b"one" if proof == "token" else number.to_bytes(16, "big")
        trail.logged_in(login, event(outcome="done")._replace(proof=proof), NOW_MS + number)
    trail.logged_in(b"other", event(outcome="done"), NOW_MS + count)
    trail.logged_in(
        b"elsewhere", event(outcome="done")._replace(address="10.0.0.9", proof=proof), NOW_MS + count
    )
    assert trail.left_out == 7
    records = [json.loads(text) for text in trail.take(NOW_MS + 2_000, 1_000)]
    assert [record["kind"] for record in records[:-1]] == ["login"] * (count - 7 + 2)
    assert (records[-1]["kind"], records[-1]["count"]) == ("left-out", 7)
    trail.logged_in(b"one", event(outcome="done")._replace(proof=proof), NOW_MS + 2_001)
    assert len(trail.take(NOW_MS + 2_001, 1_000)) == 1


def test_a_connection_asks_whether_its_login_is_told_and_remembers_it() -> None:
    """Until it has to be told again, or another credential is shown; who shows none has none to tell."""
    trail, shown = AuditTrail("herring"), ShownLogin("10.0.0.7")
    asked: list[int] = []
    known_until_ms = trail.login_known_until_ms

    def is_told(authorization: str | None, now_ms: int, certificate: str | None = None) -> bool:
        return shown.is_told(trail, authorization, certificate, now_ms)

    def noted(login: bytes, now_ms: int) -> int:
        asked.append(now_ms)
        return known_until_ms(login, now_ms)

    trail.login_known_until_ms = noted  # type: ignore[method-assign]
    first, second = "Bearer first", "Bearer second"
    assert is_told(None, NOW_MS)
    assert asked == []
    assert not is_told(first, NOW_MS)
    assert not is_told(first, NOW_MS)
    login = login_of(first, None, "10.0.0.7")
    assert login is not None
    trail.logged_in(login, event(outcome="done"), NOW_MS)
    asked.clear()
    assert all(is_told(first, NOW_MS + passed_ms) for passed_ms in (1, 2, LOGIN_AGAIN_MS - 1))
    assert asked == [NOW_MS + 1]
    assert not is_told(first, NOW_MS + LOGIN_AGAIN_MS)
    assert not is_told(second, NOW_MS + 1)
    assert is_told(first, NOW_MS + 3)
    assert not is_told(None, NOW_MS + 3, "ann")


def test_no_record_has_a_token_or_a_text_without_end() -> None:
    """A token that somebody put into a path is shown by its id."""
    trail = AuditTrail("herring")
    trail.refused(event(resource=f"token:{TOKEN.reveal()}"), NOW_MS)
    trail.refused(event(resource="x" * 10_000), NOW_MS)
    first, second = taken(trail, NOW_MS)
    assert first["resource"] == f"token:shoal_{TOKEN.id}"
    assert second["resource"] == "x" * TEXT_CHARACTERS_MAX


COMMANDS: tuple[tuple[SecurityCommand, str, str], ...] = (
    (PutPrincipal("bob", None, (), (), BY), "putPrincipal", "principal:bob"),
    (DeletePrincipal("bob", (1, 2), BY), "deletePrincipal", "principal:bob"),
    (PutRole("clerk", None, (), BY), "putRole", "role:clerk"),
    (DeleteRole("clerk", (1, 2), BY), "deleteRole", "role:clerk"),
    (MakeToken("bob", TOKEN.id, TOKEN.hash(), None, BY), "makeToken", f"token:{TOKEN.id} of principal:bob"),
    (RevokeToken(TOKEN.id, BY), "revokeToken", f"token:{TOKEN.id}"),
    (MakeSessionKey("a" * 8, b"k" * 32, None, BY), "makeSessionKey", "session-key:aaaaaaaa"),
    (EndSession("b" * 16, "bob", 5, BY), "endSession", f"session:{'b' * 16} of principal:bob"),
)


@pytest.mark.parametrize(("command", "operation", "resource"), COMMANDS, ids=[row[1] for row in COMMANDS])
def test_a_committed_command_is_told_alike_by_every_agent(
    command: SecurityCommand, operation: str, resource: str
) -> None:
    """With its place in the catalog's log, and without the token's hash."""
    assert told(command) == (operation, resource)
    trails = [AuditTrail("herring"), AuditTrail("sprat")]
    for trail in trails:
        trail.committed((3, 255), command, 7)
    one, other = (list(trail.changes) for trail in trails)
    assert one == other
    assert one[0].place == (3, 255)
    record = json.loads(one[0].text)
    assert record["operation"] == operation
    assert record["resource"] == resource
    assert (record["principal"], record["address"], record["request"]) == ("ann", "10.0.0.7", BY.request)
    assert (record["outcome"], record["place"]) == ("done", "3-ff")
    assert TOKEN.hash().hex() not in one[0].text.decode()


def test_committed_commands_are_kept_in_a_bounded_number() -> None:
    """By agents that have no topic for them; what is left out is counted, and told once there is one."""
    trail = AuditTrail("herring")
    for number in range(CHANGES_MAX + 5):
        trail.committed((0, number), PutRole("clerk", None, (), BY), number)
    assert [change.place[1] for change in trail.changes] == list(range(5, CHANGES_MAX + 5))
    assert trail.left_out == 5
    [told] = trail.take(NOW_MS, 10)
    assert (json.loads(told)["kind"], json.loads(told)["count"]) == ("left-out", 5)


def test_each_record_wakes_the_one_that_writes_it() -> None:
    """Left out ones do not."""
    trail, woken = AuditTrail("herring"), []
    trail.on_news = lambda: woken.append(1)
    trail.refused(event(), NOW_MS)
    trail.committed((0, 1), PutRole("clerk", None, (), BY), 7)
    assert len(woken) == 2
    for _ in range(2 * REFUSALS_PER_SECOND_MAX):
        trail.refused(event(), NOW_MS)
    assert len(woken) == 1 + REFUSALS_PER_SECOND_MAX
