"""Hostile sessions of browsers: changed texts, other seals, and odd payloads under a right seal.

The reader shares no code with the agent: it seals by itself, and takes one text for a session.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import re
from typing import Any, Final

from jwt_issuer import NOW_MS, base64url

from shoal.agent.security.access import Proof
from shoal.agent.security.judge import Judge
from shoal.agent.security.principals import AskedBy, Security
from shoal.agent.security.sessions import EndSession, MakeSessionKey
from shoal.errors import ShoalError
from tests.agent.credential_fuzz.heads import ANNS, BARE, BOBS, FIRST
from tests.agent.credential_fuzz.jwts import TEXTS, TIMES, nested
from tests.agent.credential_fuzz.texts import changed, repeats

KEY_ID, SECRET = "abcdefgh", bytes(range(32))
OTHER_SECRET: Final = bytes(range(1, 33))
"""Of another cluster."""
LIVE_SESSION, ENDED = "a" * 16, "e" * 16
SOURCES: Final = {("bob", BOBS.id), ("ann", ANNS.id), ("bare", BARE.id)}
_SEALED: Final = re.compile(r"shoals_([a-z2-7]{8})\.([A-Za-z0-9_-]{1,3400})\.([A-Za-z0-9_-]{43})", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9._@+:/|-]{0,255}", re.ASCII)
_ID: Final = re.compile(r"[a-z2-7]{16}", re.ASCII)


def with_sessions(state: Security) -> Security:
    """The state with a key, and one session that was ended."""
    by = AskedBy("ann", "session", "127.0.0.1", NOW_MS, "r")
    epoch, offset = state.changed
    commands = (MakeSessionKey(KEY_ID, SECRET, None, by), EndSession(ENDED, "bob", NOW_MS + 1, by))
    for number, command in enumerate(commands, 1):
        assert state.apply(command, (epoch, offset + number)) == "done"
    return state


def sealed(payload: str, key_id: str = KEY_ID, secret: bytes = SECRET) -> str:
    """As an agent seals it."""
    seal = hmac.digest(secret, f"shoal session {key_id}.{payload}".encode(), hashlib.sha256)
    return f"shoals_{key_id}.{payload}.{base64url(seal)}"


def good_values(rng: random.Random) -> list[Any]:
    """Those of a session that counts."""
    owner, token = rng.choice((("bob", BOBS), ("ann", ANNS), ("bare", BARE)))
    return [LIVE_SESSION, owner, "token", token.id, [], [1, 1], NOW_MS + 1]


def good(rng: random.Random) -> str:
    """A session that counts."""
    return sealed(base64url(json.dumps(good_values(rng)).encode()))


def hostile(rng: random.Random) -> str:
    """One that is good, or nearly."""
    values = good_values(rng)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.randrange(len(values) or 1)
        match rng.randrange(6):
            case 0:
                values[at : at + 1] = [rng.choice(TEXTS)]
            case 1:
                values[at : at + 1] = [rng.choice((*TIMES, NOW_MS, NOW_MS - 1, NOW_MS * 2, -NOW_MS))]
            case 2:
                values[0:1] = [rng.choice((ENDED, "A" * 16, "a" * 15, "a" * 17, "a" * 16 + "\n"))]
            case 3:
                values[2:4] = [
                    rng.choice(("first", "jwt", "token", "open")),
                    rng.choice((FIRST.hash()[:16].hex(), "0" * 32, BOBS.id)),
                ]
            case 4:
                values[4:5] = [
                    rng.choice(
                        (["admin"], ["admin"] * 17, ["x" * 321], [["admin"]], "admin", {"a": 1}, nested(40))
                    )
                ]
            case 5:
                values = rng.choice(([], values[:-1], [*values, 1], [values]))
    payload = base64url(json.dumps(values).encode())
    if len(payload) > 3_300:
        payload = payload[:3_300]
    key_id, secret = rng.choice(
        ((KEY_ID, SECRET),) * 8 + ((KEY_ID, OTHER_SECRET), ("bbbbbbbb", SECRET), (KEY_ID, b""))
    )
    text = sealed(payload, key_id, secret)
    if rng.random() < 0.1:  # another payload under the seal of this one
        text = text.replace(payload, base64url(json.dumps([LIVE_SESSION, "ann", *values[2:]]).encode()))
    return changed(rng, text) if rng.random() < 0.35 else text


def valid(text: str, now_ms: int) -> tuple[str, tuple[str, ...]] | None:
    """Principal and roles; None for what is no session, or none any more."""
    found = _SEALED.fullmatch(text)
    if found is None or len(text) > 3_500 or found[1] != KEY_ID or text != sealed(found[2]):
        return None
    try:
        values = json.loads(
            base64.b64decode(found[2] + "=" * (-len(found[2]) % 4), altchars=b"-_", validate=True)
        )
    except ValueError:
        return None
    if type(values) is not list or len(values) != 7:
        return None
    session_id, principal, kind, source, roles, made_at, expires_ms = values
    is_formed = (
        type(session_id) is str and _ID.fullmatch(session_id) is not None
        and type(principal) is str and _NAME.fullmatch(principal) is not None
        and type(source) is str and type(kind) is str
        and type(roles) is list and len(roles) <= 16
        and all(type(role) is str and len(role) <= 320 for role in roles)
        and type(made_at) is list and len(made_at) == 2
        and all(type(number) is int and 0 <= number < 1 << 63 for number in (*made_at, expires_ms))
    )  # fmt: skip
    if not is_formed or now_ms >= expires_ms or (session_id, principal) == (ENDED, "bob"):
        return None
    return (principal, tuple(roles)) if kind == "token" and (principal, source) in SOURCES else None


def check_session(rng: random.Random, judge: Judge) -> bool:
    """Whether it was taken. AssertionError for what the reader does not take, and for words that tell it."""
    text = hostile(rng)
    found, refused = None, None
    try:
        told = judge.identify(f"Session {text}", None, NOW_MS)
        found = told.principal, told.roles
        assert told.proof is Proof.SESSION
        assert text not in repr(told)
    except ShoalError as error:
        refused = error
    if refused is not None:
        assert refused.code == "unauthenticated", f"{refused!r} for {text!r}"
        assert not repeats(f"{refused!r} {refused.to_problem()}", text), f"{refused} repeats {text!r}"
    expected = valid(text, NOW_MS)
    assert found == expected, f"{found} and not {expected} for {text!r}"
    return found is not None
