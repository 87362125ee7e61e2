"""Rotation over HTTP: which steps are refused because they would lock somebody out, and what is told."""

from __future__ import annotations

import pytest
from fake_gossip_keys import KEY, OTHER, FakeKeyedGossip
from http_fixtures import one_agent

from shoal.agent.members.gossip_keys import KeyService
from shoal.agent.members.roster import Roster
from shoal.errors import ShoalError
from shoal.membership.interface import KeyChange
from shoal.membership.wire.keyring import MAX_KEYS, Keyring, fingerprint, key_text

INSTALL, USE, REMOVE = KeyChange.INSTALL, KeyChange.USE, KeyChange.REMOVE


def service(*names: str) -> tuple[FakeKeyedGossip, KeyService]:
    gossip = FakeKeyedGossip(*names)
    return gossip, KeyService(lambda: gossip)


async def refused(
    keys: KeyService, change: KeyChange, text: str, code: str, *, force: bool = False
) -> ShoalError:
    """The refusal, its code checked."""
    with pytest.raises(ShoalError) as caught:
        await keys.change(change, text, force=force)
    assert caught.value.code == code, caught.value
    return caught.value


async def test_a_rotation_step_by_step() -> None:
    """Each answer shows where the pool stands; a known key may be named by its fingerprint."""
    gossip, keys = service("a", "b", "c")
    old, new = fingerprint(KEY), fingerprint(OTHER)
    assert (await keys.listing())["keys"] == [{"fingerprint": old, "held_by": 3, "used_by": 3}]
    document = await keys.change(INSTALL, key_text(OTHER), force=False)
    assert document["keys"] == [
        {"fingerprint": old, "held_by": 3, "used_by": 3},
        {"fingerprint": new, "held_by": 3, "used_by": 0},
    ]
    document = await keys.change(USE, new, force=False)
    assert [entry["used_by"] for entry in document["keys"]] == [3, 0]
    document = await keys.change(REMOVE, old.upper(), force=False)
    assert document == {
        "members": 3, "keys": [{"fingerprint": new, "held_by": 3, "used_by": 3}], "failures": [], "away": [],
    }  # fmt: skip
    assert set(gossip.rings.values()) == {Keyring((OTHER,))}


async def test_no_answer_holds_a_key() -> None:
    """Neither the listing nor a refusal: whoever can read HTTP cannot join the gossip by it."""
    _, keys = service("a")
    shown = repr(await keys.change(INSTALL, key_text(OTHER), force=False))
    shown += str(await refused(keys, REMOVE, key_text(KEY), "keys-differ"))
    assert key_text(KEY) not in shown
    assert key_text(OTHER) not in shown


async def test_a_key_that_somebody_lacks_is_not_used() -> None:
    """Nothing has happened then; with force it happens where it can."""
    gossip, keys = service("a", "b", "c")
    gossip.rings["b"] = gossip.rings["a"] = Keyring((KEY, OTHER))
    error = await refused(keys, USE, key_text(OTHER), "keys-differ")
    assert "2 of 3 members" in error.detail
    assert error.definite
    assert gossip.changes == []
    error = await refused(keys, USE, key_text(OTHER), "keys-differ", force=True)
    assert not error.definite
    assert error.extra["failures"] == [
        {"id": "c", "name": "the-c", "reason": "Requested key is not in the keyring"}
    ]
    await refused(keys, USE, fingerprint(bytes(24)), "keys-differ")


async def test_a_key_in_use_is_not_removed() -> None:
    """By whomever it is used: the pool itself refuses only on those who use it."""
    gossip, keys = service("a", "b")
    gossip.rings["b"] = Keyring((OTHER, KEY))
    error = await refused(keys, REMOVE, key_text(KEY), "keys-differ")
    assert "in use by 1 of 2 members" in error.detail
    assert gossip.changes == []


async def test_behind_a_serf_agent_nobody_knows_who_uses_which_key() -> None:
    """The listing says so, and a removal needs somebody who does know."""
    gossip, keys = service("a", "b")
    gossip.tells_primaries = False
    document = await keys.change(INSTALL, key_text(OTHER), force=False)
    assert [entry["used_by"] for entry in document["keys"]] == [None, None]
    await keys.change(USE, key_text(OTHER), force=False)
    error = await refused(keys, REMOVE, key_text(KEY), "keys-differ")
    assert "say force" in error.detail
    document = await keys.change(REMOVE, key_text(KEY), force=True)
    assert document["keys"] == [{"fingerprint": fingerprint(OTHER), "held_by": 2, "used_by": None}]


async def test_the_failed_count_and_those_who_left_are_named() -> None:
    """A failed member may come back with the old keys; one that left is gone as far as anybody knows."""
    gossip, keys = service("a", "b", "c")
    gossip.status["c"] = "failed"
    await keys.change(INSTALL, key_text(OTHER), force=False)
    for change, key in ((USE, OTHER), (REMOVE, KEY)):
        error = await refused(keys, change, key_text(key), "keys-differ")
        assert "the-c" in error.detail
    gossip.status["c"] = "left"
    document = await keys.change(USE, key_text(OTHER), force=False)
    assert document["away"] == ["the-c"]
    gossip.status["c"] = "failed"
    document = await keys.change(REMOVE, key_text(KEY), force=True)
    assert document["members"] == 2


async def test_silence_is_told_and_may_be_tried_again() -> None:
    """504 after a change, which may have happened there; before it, nothing has happened."""
    gossip, keys = service("a", "b")
    gossip.silent = {"b"}
    error = await refused(keys, INSTALL, key_text(OTHER), "timeout")
    assert "1 of 2 members; the-b: no answer" in error.detail
    assert not error.definite
    gossip.changes.clear()
    error = await refused(keys, USE, key_text(OTHER), "timeout")
    assert error.definite
    assert gossip.changes == []


async def test_what_cannot_work_says_what_to_do() -> None:
    """No key, no sealed gossip, no gossip yet, a pool that is too busy, a ring that is full."""
    gossip, keys = service("a")
    await refused(keys, INSTALL, "not a key", "bad-request")
    await refused(keys, INSTALL, fingerprint(KEY), "bad-request")
    await refused(keys, USE, key_text(KEY)[:-4], "bad-request")
    gossip.rings["a"] = Keyring(bytes((number,)) * 16 for number in range(MAX_KEYS))
    error = await refused(keys, INSTALL, key_text(OTHER), "keys-differ")
    assert "at most" in error.detail
    gossip.busy = True
    await refused(keys, INSTALL, key_text(OTHER), "overloaded")
    gossip.busy, gossip.rings["a"] = False, None
    error = await refused(keys, INSTALL, key_text(OTHER), "keys-differ")
    assert "--gossip-key" in error.detail
    roster = Roster(agent_id="me", cluster="fish", links=None, watch=None)  # type: ignore[arg-type]
    with pytest.raises(ShoalError, match="not started"):
        await KeyService(roster.gossip).listing()


async def test_the_routes() -> None:
    """Status, documents and problems over HTTP; bodies that make no sense are 400."""
    async with one_agent() as agent:
        assert (await agent.get("/v1/keys")).json["keys"][0]["used_by"] == 1
        answer = await agent.post("/v1/keys/install", {"key": key_text(OTHER)})
        assert (answer.status, len(answer.json["keys"])) == (200, 2)
        answer = await agent.post("/v1/keys/remove", {"key": key_text(KEY)})
        assert (answer.status, answer.problem("keys-differ")["definite"]) == (409, True)
        assert (await agent.post("/v1/keys/use", {"key": fingerprint(OTHER), "force": True})).status == 200
        for body in ({}, {"key": 1}, {"key": "x", "force": "yes"}, {"key": "x", "forced": True}):
            (await agent.post("/v1/keys/install", body)).problem("bad-request")
        (await agent.get("/v1/keys/install")).problem("method-not-allowed")
        (await agent.post("/v1/keys")).problem("method-not-allowed")
