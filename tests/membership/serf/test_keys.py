"""Key queries: the rules, Serf's bytes, and whole pools that change their keys without losing a member."""

import random

import pytest

from shoal.membership.serf.keys import (
    INSTALL_QUERY,
    LIST_QUERY,
    MAX_WAITING,
    NOT_IN_PLAIN,
    REMOVE_QUERY,
    USE_QUERY,
    KeyDesk,
    report,
)
from shoal.membership.serf.own_queries import MAX_QUERY_BYTES, QueryRequest
from shoal.membership.serf.ready import EventKind, ReplyKind
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.key_messages import (
    KeyAnswer,
    decode_key_answer,
    decode_key_request,
    encode_key_answer,
    encode_key_request,
)
from shoal.membership.wire.keyring import MAX_KEYS, Keyring, key_text
from shoal.membership.wire.messages import MAX_NAME_BYTES, Endpoint
from shoal.membership.wire.serf import MAX_LTIME, Query, encode_serf
from tests.membership.pool import Pool, endpoint_of

KEY, OTHER, THIRD = bytes(16), bytes(range(32)), bytes(range(24))
HERE = Endpoint(bytes((127, 0, 0, 1)), 7946)


def test_the_bytes_are_serfs() -> None:
    """As captured from an agent: a request with a key, one for the list, and an answer."""
    assert encode_key_request(OTHER) == b"\x07\x81\xa3Key\xda\x00\x20" + OTHER
    assert encode_key_request(b"") == b"\x07\x81\xa3Key\xa0"
    text = key_text(OTHER)
    answer = KeyAnswer(True, "", (text,), text)
    raw = b"\xda\x00\x2c" + text.encode()
    assert encode_key_answer(answer) == (
        b"\x08\x84\xa4Keys\x91" + raw + b"\xa7Message\xa0\xaaPrimaryKey" + raw + b"\xa6Result\xc3"
    )
    assert decode_key_answer(encode_key_answer(answer)) == answer
    assert decode_key_request(encode_key_request(OTHER)) == OTHER
    refused = KeyAnswer(False, "No keyring to modify (encryption not enabled)")
    assert decode_key_answer(encode_key_answer(refused)) == refused
    for data in (b"", b"\x06\xc0", b"\x08\x91\xa1x", b"\x07", b"\x08\x81\xa4Keys\xdc\x00\x41" + b"\xa0" * 65):
        with pytest.raises(WireError):
            decode_key_answer(data)
        with pytest.raises(WireError):
            decode_key_request(data)


def query(name: str, key: bytes = b"", ltime: int = 1, payload: bytes | None = None) -> Query:
    content = encode_key_request(key) if payload is None else payload
    return Query(ltime, 7, HERE, "asker", (), 0, 0, 10**9, name, content)


def taken(desk: KeyDesk) -> list[KeyAnswer]:
    """What would be sent."""
    answers = [decode_key_answer(answer.payload) for _, answer in desk.answers]
    desk.answers.clear()
    desk.check_invariants()
    return answers


def test_a_change_is_in_force_and_answered_only_when_it_is_kept() -> None:
    """Meanwhile the old keys hold; what could not be written did not happen, and the asker hears why."""
    desk = KeyDesk("me", Keyring((KEY,)))
    desk.on_query(query(INSTALL_QUERY, OTHER))
    assert (taken(desk), desk.change, desk.keyring) == ([], Keyring((KEY, OTHER)), Keyring((KEY,)))
    desk.kept("the disk is full")
    assert (taken(desk), desk.keyring) == ([KeyAnswer(False, "the disk is full")], Keyring((KEY,)))
    desk.on_query(query(INSTALL_QUERY, OTHER))
    desk.kept("")
    assert (taken(desk), desk.keyring) == ([KeyAnswer(True)], Keyring((KEY, OTHER)))


def test_changes_come_one_after_the_other() -> None:
    """Each is worked out on what the one before it left; what changes nothing is answered at once."""
    desk = KeyDesk("me", Keyring((KEY,)))
    for name, key in ((INSTALL_QUERY, OTHER), (USE_QUERY, OTHER), (REMOVE_QUERY, OTHER), (REMOVE_QUERY, KEY)):
        desk.on_query(query(name, key))
    assert taken(desk) == []
    desk.kept("")
    desk.kept("")
    assert [answer.message for answer in taken(desk)] == [
        "", "", "Removing the primary key is not allowed",
    ]  # fmt: skip
    assert desk.keyring == Keyring((OTHER, KEY))
    desk.kept("")
    assert desk.keyring == Keyring((OTHER,))
    assert taken(desk) == [KeyAnswer(True)]
    desk.on_query(query(REMOVE_QUERY, KEY))
    assert taken(desk) == [KeyAnswer(True)]


def test_what_cannot_be_is_refused_in_serfs_words() -> None:
    """Unknown key, wrong length, no keyring, no request at all."""
    desk = KeyDesk("me", Keyring((KEY,)))
    desk.on_query(query(USE_QUERY, OTHER))
    desk.on_query(query(INSTALL_QUERY, b"short"))
    desk.on_query(query(INSTALL_QUERY, payload=b"garbage"))
    messages = [answer.message for answer in taken(desk)]
    assert messages[:2] == ["Requested key is not in the keyring", "key size must be 16, 24 or 32 bytes"]
    assert "not a key request" in messages[2]
    plain = KeyDesk("me", None)
    plain.on_query(query(INSTALL_QUERY, KEY))
    plain.on_query(query(LIST_QUERY))
    assert [(answer.ok, answer.message) for answer in taken(plain)] == [
        (False, "No keyring to modify (encryption not enabled)"),
        (False, "Keyring is empty (encryption not enabled)"),
    ]


def test_a_node_that_takes_plain_text_neither_shows_nor_changes_keys() -> None:
    """Else anybody could ask."""
    desk = KeyDesk("me", Keyring((KEY,)), only_sealed=False)
    desk.on_query(query(LIST_QUERY))
    desk.on_query(query(INSTALL_QUERY, OTHER))
    assert taken(desk) == [KeyAnswer(False, NOT_IN_PLAIN)] * 2


def test_waiting_changes_are_bounded() -> None:
    """A flood of them while one is being written."""
    desk = KeyDesk("me", Keyring((KEY,)))
    for number in range(MAX_WAITING + 3):
        desk.on_query(query(INSTALL_QUERY, bytes((number + 1,)) * 16))
    assert [answer.ok for answer in taken(desk)] == [False] * 3


def test_a_listing_fits_into_an_answer() -> None:
    """With the longest name, the fullest ring and the latest time there is."""
    ring = Keyring(bytes((number,)) * 32 for number in range(MAX_KEYS))
    desk = KeyDesk("n" * MAX_NAME_BYTES, ring)
    desk.on_query(query(LIST_QUERY, ltime=MAX_LTIME))
    ((_, response),) = desk.answers
    assert 900 < len(encode_serf(response)) <= MAX_QUERY_BYTES
    assert taken(desk) == [
        KeyAnswer(True, "", tuple(key_text(key) for key in ring.keys), key_text(bytes(32)))
    ]


def test_a_report_counts_everybody_and_names_who_failed() -> None:
    """The silent, the refusing, the unreadable; one that was not known to be alive counts as well."""
    text, other = key_text(KEY), key_text(OTHER)
    answers = {
        "a": encode_key_answer(KeyAnswer(True, "", (text, other), text)),
        "b": encode_key_answer(KeyAnswer(True, "truncated", (other,), text)),
        "c": encode_key_answer(KeyAnswer(False, "")),
        "d": b"\x08garbage",
        "f": encode_key_answer(KeyAnswer(True, "", ("short",), text)),
    }
    result = report(["a", "b", "e"], answers)
    assert result.members == 6
    assert result.failures.keys() == {"c", "d", "e", "f"}
    assert (result.failures["c"], result.failures["e"]) == ("it refused", "no answer")
    assert result.keys == {KEY: 2, OTHER: 2}
    assert result.primaries == {KEY: 2}


# Pools


def ask_all(pool: Pool, name: str, request: str, key: bytes = b"") -> dict[str, KeyAnswer]:
    """Put a key query through n0's eyes and wait for its end."""
    asked = pool.ask(name, QueryRequest(request, encode_key_request(key)))

    def over() -> bool:
        return any(reply.key == asked and reply.kind is ReplyKind.DONE for reply in pool.replies)

    pool.run_until(over, 60_000)
    return {
        reply.sender: decode_key_answer(reply.payload)
        for reply in pool.replies
        if reply.key == asked and reply.kind is ReplyKind.ANSWER
    }


def all_hold(pool: Pool, *keys: bytes) -> bool:
    return all(process.core.keyring == Keyring(keys) for process in pool.alive())


@pytest.mark.parametrize(("count", "loss", "seed"), [(3, 0.0, 1), (10, 0.1, 2)])
def test_a_pool_rotates_its_keys_without_losing_a_member(count: int, loss: float, seed: int) -> None:
    """Install, use, remove, told again until everybody has done it; nobody is ever suspected dead, and the
    packets refused on the way are none."""
    pool = Pool(count, seed, loss=loss, keyring=Keyring((KEY,)), label="fish")
    everybody = dict.fromkeys(pool.processes, "alive")
    pool.run_until(lambda: pool.all_show(everybody), 60_000)
    for request, key, after in (
        (INSTALL_QUERY, OTHER, (KEY, OTHER)),
        (USE_QUERY, OTHER, (OTHER, KEY)),
        (REMOVE_QUERY, KEY, (OTHER,)),
    ):
        answers: dict[str, KeyAnswer] = {}
        for _ in range(10):  # an answer is one packet: under loss each round misses another one or two
            answers |= ask_all(pool, "n0", request, key)
            if len(answers) == count:
                break
        assert len(answers) == count
        assert all(answer.ok for answer in answers.values())
        assert all_hold(pool, *after)
    pool.run_for(30_000)
    assert pool.all_show(everybody)
    assert pool.count(EventKind.FAILED, EventKind.LEFT) == 0
    assert pool.refused == 0
    listed = ask_all(pool, "n1", LIST_QUERY)
    assert {answer.primary for answer in listed.values()} == {key_text(OTHER)}


@pytest.mark.parametrize(
    "knobs", [{"keyring": Keyring((OTHER,))}, {"keyring": None}, {"label": "fowl"}, {"label": ""}]
)
def test_strangers_never_appear_and_stop_nobody(knobs: dict[str, object]) -> None:
    """They try from both sides for a minute; each side goes on as if the other were not there."""
    pool = Pool(3, 5, keyring=Keyring((KEY,)), label="fish")
    expected = dict.fromkeys(pool.processes, "alive")
    pool.start("z", endpoint_of(99), **knobs)
    for second in range(0, 60_000, 1_000):
        pool.at(second, lambda: pool.join("z", "n1"))
        pool.at(second, lambda: pool.join("n2", "z"))
    pool.run_for(60_000)
    assert {name: pool.view(name) for name in ("n0", "n1", "n2")} == dict.fromkeys(
        ("n0", "n1", "n2"), expected
    )
    assert pool.view("z") == {"z": "alive"}
    assert pool.refused >= 60
    assert pool.count(EventKind.SUSPECTED, EventKind.FAILED) == 0


def test_one_that_missed_a_rotation_is_out_until_it_has_the_key() -> None:
    """Away while the others rotate: it gets in nowhere with the old key, and at once with the new one."""
    pool = Pool(3, 9, keyring=Keyring((KEY,)))
    pool.run_until(lambda: pool.all_show(dict.fromkeys(pool.processes, "alive")), 30_000)
    pool.kill("n2")
    pool.run_until(lambda: pool.view("n0")["n2"] == "failed", 30_000)
    for request, key in ((INSTALL_QUERY, OTHER), (USE_QUERY, OTHER), (REMOVE_QUERY, KEY)):
        assert set(ask_all(pool, "n0", request, key)) == {"n0", "n1"}
    pool.restart("n2")
    pool.run_for(30_000)
    assert pool.view("n0")["n2"] == "failed"
    pool.kill("n2")
    pool.start("n2", endpoint_of(2), keyring=Keyring((OTHER,)))
    pool.join("n2", "n0")
    pool.run_until(lambda: pool.all_show(dict.fromkeys(("n0", "n1", "n2"), "alive")), 30_000)


def test_random_key_queries_leave_every_keyring_whole() -> None:
    """A thousand of them, sensible or not, never break an invariant nor lose the primary key unasked."""
    rng = random.Random(11)
    desk = KeyDesk("me", Keyring((KEY,)))
    for step in range(1_000):
        name = rng.choice((INSTALL_QUERY, USE_QUERY, REMOVE_QUERY, LIST_QUERY))
        key = rng.choice((KEY, OTHER, THIRD, b"", bytes((step % 20 + 1,)) * 16))
        before = desk.keyring
        desk.on_query(query(name, key))
        if desk.change is not None and rng.random() < 0.7:
            desk.kept(rng.choice(("", "", "no")))
        taken(desk)
        assert desk.keyring is not None
        assert before is not None
        assert desk.keyring.primary == before.primary or desk.keyring.primary in before.keys
