"""Sessions of browsers: how they are sealed, the cluster's keys, and the sessions that were ended.

Law of this file: pure. Keys, ids and times are arguments; the fold is a part of the security state
(principals.py). A sealed session is `shoals_KEY.PAYLOAD.SEAL`: KEY names one of the cluster's keys, PAYLOAD
is the session as JSON in base64url, and SEAL is its HMAC-SHA-256 (RFC 2104). Nothing of a payload is read
before its seal is right. Its holder is taken for its principal, so no repr, error or log shows one.

A session holds no longer than the credential that it was made of, which it names. Sessions are kept nowhere.
One that was ended stands here until it would have expired. Both lists are bounded, and a bound never brings
an ended session back. A principal that ends too many of them loses all that it had. Where too many principals
have ended some, all sessions end, by new keys. Entries go by the time of commands, and are kept
ENDED_KEPT_MS longer: a leader whose clock was ahead forgets none that others still take.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from shoal.agent.security.access import AskedBy, Place
from shoal.agent.security.rules import ROLE_CHARACTERS_MAX

KEY_ID: Final = re.compile(r"[a-z2-7]{8}")
KEY_ID_BYTES: Final = 5
KEY_BYTES: Final = 32
KEYS_MAX: Final = 2
"""The newest, and the one that sealed the sessions before it."""
KEY_AGE_MS: Final = 7 * 86_400_000
"""An older one gets a successor at the next login. Sessions of the one before have long expired."""
KEY_SETTLES_MS: Final = 60_000
"""A key is known to every agent that is heard long before; until then the former one seals."""
CLOCKS_DIFFER_MS: Final = 3_600_000
SESSION_LIFETIME_MS: Final = 12 * 3_600_000
"""A working day. A session ends sooner with the credential that it was made of."""
SESSION_ID: Final = re.compile(r"[a-z2-7]{16}")
ENDED_OF_ONE_MAX: Final = 16
"""EndedSessions sessions of one principal; at the next all that it had end."""
ENDED_PRINCIPALS_MAX: Final = 512
"""Principals with ended sessions; at the next all sessions end. All of them are 0.4 MB of the state."""
ENDED_KEPT_MS: Final = 2 * CLOCKS_DIFFER_MS
NUMBER_MAX: Final = 1 << 63
NAME_CHARACTERS_MAX: Final = 512


class SessionKey(NamedTuple):
    """`secret`: 32 random bytes. `made_ms`: unix milliseconds."""

    id: str
    secret: bytes
    made_ms: int

    def __repr__(self) -> str:
        return f"SessionKey({self.id} made_ms={self.made_ms})"


class EndedSessions(NamedTuple):
    """Of one principal. `sessions`: ids, and when each would expire. `before`: those that were made at an
    earlier place have ended, too. `until_ms`: when all of it may be forgotten."""

    sessions: dict[str, int]
    before: Place | None
    until_ms: int


@dataclass(frozen=True, slots=True)
class MakeSessionKey:
    """Takes effect only where the newest key has the id `before`; None: where there is none."""

    id: str
    secret: bytes
    before: str | None
    by: AskedBy

    def __repr__(self) -> str:
        return f"MakeSessionKey({self.id} before={self.before} by={self.by})"


@dataclass(frozen=True, slots=True)
class EndSession:
    """By id. `expires_ms`: when it would end by itself."""

    id: str
    principal: str
    expires_ms: int
    by: AskedBy


SessionCommand = MakeSessionKey | EndSession
SessionOutcome = Literal["done", "other-version", "session-ended"]


@dataclass(slots=True)
class Sessions:
    """`keys`: the newest first. `ended`: by principal."""

    keys: tuple[SessionKey, ...] = ()
    ended: dict[str, EndedSessions] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Sessions(keys={len(self.keys)} ended={sum(len(one.sessions) for one in self.ended.values())})"
        )

    def key(self, key_id: str) -> SessionKey | None:
        """By its id."""
        return next((key for key in self.keys if key.id == key_id), None)

    def sealing_key(self, now_ms: int) -> SessionKey | None:
        """The key for a new session; None: one has to be made first."""
        if not self.keys or not -CLOCKS_DIFFER_MS <= now_ms - self.keys[0].made_ms < KEY_AGE_MS:
            return None
        settles = now_ms - self.keys[0].made_ms < KEY_SETTLES_MS
        return self.keys[-1] if settles else self.keys[0]

    def has_ended(self, session_id: str, principal: str, made_at: Place) -> bool:
        """Whether somebody has ended it."""
        ended = self.ended.get(principal)
        if ended is None:
            return False
        return session_id in ended.sessions or (ended.before is not None and made_at < ended.before)

    def apply(self, command: SessionCommand, place: Place) -> SessionOutcome:
        """Fold in the command that was committed at this place."""
        match command:
            case MakeSessionKey(key_id, secret, before, by):
                if before != (self.keys[0].id if self.keys else None) or self.key(key_id) is not None:
                    return "other-version"
                self.keys = (SessionKey(key_id, secret, by.at_ms), *self.keys[: KEYS_MAX - 1])
                return "done"
            case EndSession():
                return self._end(command, place)

    def _end(self, command: EndSession, place: Place) -> SessionOutcome:
        at_ms, principal = command.by.at_ms, command.principal
        for name in [name for name, ended in self.ended.items() if ended.until_ms <= at_ms]:
            del self.ended[name]
        known = self.ended.get(principal, EndedSessions({}, None, 0))
        if command.id in known.sessions:
            return "session-ended"
        if principal not in self.ended and len(self.ended) >= ENDED_PRINCIPALS_MAX:
            self.keys = ()
            self.ended.clear()
            return "done"
        until_ms = max(known.until_ms, command.expires_ms + ENDED_KEPT_MS)
        kept = {
            session: expires_ms
            for session, expires_ms in known.sessions.items()
            if expires_ms + ENDED_KEPT_MS > at_ms
        }
        if len(kept) >= ENDED_OF_ONE_MAX:
            # Of what was made until now nothing expires later than the youngest, which is of now.
            self.ended[principal] = EndedSessions(
                {}, place, max(until_ms, at_ms + SESSION_LIFETIME_MS + ENDED_KEPT_MS)
            )
        else:
            kept[command.id] = command.expires_ms
            self.ended[principal] = EndedSessions(kept, known.before, until_ms)
        return "done"

    def check_invariants(self) -> None:
        """Asserts; called by tests after every command."""
        assert len(self.keys) <= KEYS_MAX
        assert len({key.id for key in self.keys}) == len(self.keys)
        assert len(self.ended) <= ENDED_PRINCIPALS_MAX
        for ended in self.ended.values():
            assert len(ended.sessions) <= ENDED_OF_ONE_MAX
            assert ended.sessions or ended.before is not None
            assert all(expires_ms < ended.until_ms for expires_ms in ended.sessions.values())

    # ---- as JSON -----------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The whole of it; the keys' secrets as hex."""
        return {
            "keys": [[key.id, key.secret.hex(), key.made_ms] for key in self.keys],
            "ended": {
                principal: [ended.sessions, ended.before, ended.until_ms]
                for principal, ended in sorted(self.ended.items())
            },
        }


def sessions_from(value: Any) -> Sessions:
    """Raises ValueError, and nothing else."""
    if not isinstance(value, dict):
        raise ValueError("sessions are an object")
    keys, ended = value.get("keys"), value.get("ended")
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise ValueError(f"keys are a list of at most {KEYS_MAX}")
    if not isinstance(ended, dict) or len(ended) > ENDED_PRINCIPALS_MAX:
        raise ValueError(f"ended sessions are those of at most {ENDED_PRINCIPALS_MAX} principals")
    found = Sessions(
        tuple(map(_key_from, keys)), {_name(name): _ended_from(it) for name, it in ended.items()}
    )
    if len({key.id for key in found.keys}) < len(keys):
        raise ValueError("a key stands twice in the state")
    return found


def command_fields(command: SessionCommand) -> dict[str, Any]:
    """As documents.py has those of other commands."""
    match command:
        case MakeSessionKey(key_id, secret, before, _):
            return {"id": key_id, "secret": secret.hex(), "before": before}
        case EndSession(session_id, principal, expires_ms, _):
            return {"id": session_id, "name": principal, "expires_ms": expires_ms}


def key_command_from(document: Mapping[str, Any], by: AskedBy) -> MakeSessionKey:
    """Raises ValueError, and nothing else."""
    key = _key_from([document.get("id"), document.get("secret"), 0])
    before = document.get("before")
    if before is not None and (not isinstance(before, str) or KEY_ID.fullmatch(before) is None):
        raise ValueError("the key before has an id of 8 characters")
    return MakeSessionKey(key.id, key.secret, before, by)


def end_command_from(document: Mapping[str, Any], by: AskedBy) -> EndSession:
    """Raises ValueError, and nothing else."""
    expires_ms = _number(document.get("expires_ms"))
    return EndSession(_session_id(document.get("id")), _name(document.get("name")), expires_ms, by)


def _key_from(value: Any) -> SessionKey:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a key is three values")
    key_id, secret, made_ms = value
    if not isinstance(key_id, str) or KEY_ID.fullmatch(key_id) is None:
        raise ValueError("a key's id is 8 of a to z and 2 to 7")
    if not isinstance(secret, str) or re.fullmatch(r"[0-9a-f]{64}", secret) is None:
        raise ValueError("a key is 64 hex digits")
    return SessionKey(key_id, bytes.fromhex(secret), _number(made_ms))


def _ended_from(value: Any) -> EndedSessions:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], dict):
        raise ValueError("ended sessions are three values")
    sessions, before, until_ms = value
    if len(sessions) > ENDED_OF_ONE_MAX:
        raise ValueError(f"there are at most {ENDED_OF_ONE_MAX} ended sessions of a principal")
    if before is not None:
        if not isinstance(before, list) or len(before) != 2:
            raise ValueError("a place is epoch and offset")
        before = (_number(before[0]), _number(before[1]))
    return EndedSessions(
        {_session_id(one): _number(at_ms) for one, at_ms in sessions.items()}, before, _number(until_ms)
    )


def _session_id(value: Any) -> str:
    if not isinstance(value, str) or SESSION_ID.fullmatch(value) is None:
        raise ValueError("a session's id is 16 of a to z and 2 to 7")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARACTERS_MAX:
        raise ValueError("a principal has a name")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError("a whole number is needed")
    return value


# ---- the seal ----------------------------------------------------------------------------------------------

SESSION_ID_BYTES: Final = 10
SEALED_CHARACTERS_MAX: Final = 3_500
"""Browsers keep 4,096 bytes of a cookie, its name and attributes included."""
SESSION_PATTERN: Final = r"shoals_[a-z2-7]{8}\.[A-Za-z0-9_-]{1,3400}\.[A-Za-z0-9_-]{43}"
"""For scanners of secrets."""
SESSION_SCHEME: Final = "Session "
"""Of the header Authorization, by which an agent passes the session of its client on."""
_SEALED: Final = re.compile(SESSION_PATTERN)
_SOURCE: Final = re.compile(r"[a-z0-9]{1,64}")
SESSION_ROLES_MAX: Final = 16
"""As a JWT has."""


class SessionError(ValueError):
    """A text that is no session, or one that ends here. Its words repeat nothing of it."""


class SourceKind(StrEnum):
    """Credentials that sessions are made of."""

    TOKEN = "token"  # noqa: S105 -- the name of a kind
    FIRST = "first"
    JWT = "jwt"


class SessionSource(NamedTuple):
    """The credential of a session. `name`: the token's id, the beginning of the first token's hash, or the
    name of the issuer's key (jwt_keys.py)."""

    kind: SourceKind
    name: str


class BrowserSession(NamedTuple):
    """`roles`: beside those of the principal, from a JWT. `made_at`: the security state that the agent knew
    then. `expires_ms`: of the wall clock."""

    id: str
    principal: str
    source: SessionSource
    roles: tuple[str, ...]
    made_at: Place
    expires_ms: int


def seal(session: BrowserSession, key: SessionKey) -> str:
    """Raises SessionError for one that no cookie holds: it has too many roles."""
    values = [
        session.id,
        session.principal,
        session.source.kind.value,
        session.source.name,
        session.roles,
        session.made_at,
        session.expires_ms,
    ]
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    payload = _base64(text.encode(errors="surrogatepass"))  # as json.loads() reads it: an issuer names roles
    sealed = f"shoals_{key.id}.{payload}.{_seal_of(payload, key)}"
    if len(sealed) > SEALED_CHARACTERS_MAX:
        raise SessionError(
            f"its roles make a session of {len(sealed)} characters, and a cookie holds"
            f" {SEALED_CHARACTERS_MAX}: take a token, or a JWT with fewer roles"
        )
    return sealed


def key_id_of(text: str) -> str:
    """The id of the key that has to have sealed it. Raises SessionError, and nothing else."""
    return _parts(text)[0]


def open_session(text: str, key: SessionKey) -> BrowserSession:
    """As it was sealed; expired or not. Raises SessionError, and nothing else."""
    key_id, payload, sealed = _parts(text)
    if key_id != key.id or not hmac.compare_digest(sealed, _seal_of(payload, key)):
        raise SessionError("the session was not sealed by this cluster: log in again")
    try:
        return _session_from(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))))
    except (ValueError, RecursionError):
        raise SessionError("the session is of another version of Shoal: log in again") from None


def _parts(text: str) -> tuple[str, str, str]:
    if len(text) > SEALED_CHARACTERS_MAX or _SEALED.fullmatch(text) is None:
        raise SessionError("the cookie is no session of Shoal: log in again")
    name, payload, sealed = text.split(".")
    return name.removeprefix("shoals_"), payload, sealed


def _session_from(values: Any) -> BrowserSession:
    """Raises ValueError for anything that seal() does not write."""
    if not isinstance(values, list) or len(values) != 7:
        raise ValueError("a session is seven values")
    session_id, principal, kind, name, roles, made_at, expires_ms = values
    if not isinstance(session_id, str) or SESSION_ID.fullmatch(session_id) is None:
        raise ValueError("a session's id is 16 characters of base32")
    if not isinstance(principal, str) or not 0 < len(principal) <= NAME_CHARACTERS_MAX:
        raise ValueError("a session's principal is one")
    if not isinstance(name, str) or _SOURCE.fullmatch(name) is None:
        raise ValueError("a session's source has a name")
    if (
        not isinstance(roles, list)
        or len(roles) > SESSION_ROLES_MAX
        or not all(isinstance(role, str) and len(role) <= ROLE_CHARACTERS_MAX for role in roles)
    ):
        raise ValueError("a session's roles are texts")
    if not isinstance(made_at, list) or len(made_at) != 2:
        raise ValueError("a session's place is epoch and offset")
    for number in (*made_at, expires_ms):
        if type(number) is not int or not 0 <= number < NUMBER_MAX:
            raise ValueError("whole numbers are needed")
    source = SessionSource(SourceKind(kind), name)
    return BrowserSession(session_id, principal, source, tuple(roles), (made_at[0], made_at[1]), expires_ms)


def _seal_of(payload: str, key: SessionKey) -> str:
    return _base64(hmac.digest(key.secret, f"shoal session {key.id}.{payload}".encode(), hashlib.sha256))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
