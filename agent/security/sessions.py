"""Sessions of browsers: a value that an agent seals, and every agent opens, with keys that the catalog has.

Law of this file: pure. The key, the id and the time are arguments. A sealed session is
`shoals_KEY.PAYLOAD.SEAL`: KEY names one of the cluster's keys, PAYLOAD is the session as JSON in base64url,
and SEAL is its HMAC-SHA-256 (RFC 2104). Nothing of a payload is read before its seal is right. Its holder is
taken for its principal, so no repr, error or log shows one.

A session holds no longer than the credential that it was made of. It names its source: the token by its id,
the first token by its hash, or the key of the JWT. The judge looks at each request whether that still counts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from enum import StrEnum
from typing import Any, Final, NamedTuple

from shoal.agent.security.access import Place
from shoal.agent.security.principals import PRINCIPAL_NAME, ROLES_OF_ONE_MAX
from shoal.agent.security.rules import ROLE_CHARACTERS_MAX
from shoal.agent.security.session_state import SESSION_ID, SessionKey

SESSION_ID_BYTES: Final = 10
SEALED_CHARACTERS_MAX: Final = 3_500
"""Browsers keep 4,096 bytes of a cookie, its name and attributes included."""
SESSION_PATTERN: Final = r"shoals_[a-z2-7]{8}\.[A-Za-z0-9_-]{1,3400}\.[A-Za-z0-9_-]{43}"
"""For scanners of secrets."""
SESSION_SCHEME: Final = "Session "
"""Of the header Authorization, by which an agent passes the session of its client on."""
_SEALED: Final = re.compile(SESSION_PATTERN)
_SOURCE: Final = re.compile(r"[a-z0-9]{1,64}")
_NUMBER_MAX: Final = 1 << 63


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
    payload = _base64(json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode())
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
    if not isinstance(principal, str) or PRINCIPAL_NAME.fullmatch(principal) is None:
        raise ValueError("a session's principal is one")
    if not isinstance(name, str) or _SOURCE.fullmatch(name) is None:
        raise ValueError("a session's source has a name")
    if (
        not isinstance(roles, list)
        or len(roles) > ROLES_OF_ONE_MAX
        or not all(isinstance(role, str) and len(role) <= ROLE_CHARACTERS_MAX for role in roles)
    ):
        raise ValueError("a session's roles are texts")
    if not isinstance(made_at, list) or len(made_at) != 2:
        raise ValueError("a session's place is epoch and offset")
    for number in (*made_at, expires_ms):
        if type(number) is not int or not 0 <= number < _NUMBER_MAX:
            raise ValueError("whole numbers are needed")
    source = SessionSource(SourceKind(kind), name)
    return BrowserSession(session_id, principal, source, tuple(roles), (made_at[0], made_at[1]), expires_ms)


def _seal_of(payload: str, key: SessionKey) -> str:
    return _base64(hmac.digest(key.secret, f"shoal session {key.id}.{payload}".encode(), hashlib.sha256))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
