"""Keys that seal browsers' sessions, and the sessions that were ended: a state, its commands, and their fold.

Law of this file: pure, as principals.py, of whose state this is a part. Sessions themselves are kept nowhere:
whoever has a good seal has one (sessions.py). One that was ended stands here until it would have expired.
Both lists are bounded, and a bound never brings an ended session back. A principal that ends too many of
them loses all that it had. Where too many principals have ended some, all sessions end, by new keys.

Time. Entries go by the time of commands. They are kept ENDED_KEPT_MS longer than the sessions: a leader whose
clock was ahead forgets none that others still take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from shoal.agent.security.access import AskedBy, Place

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
