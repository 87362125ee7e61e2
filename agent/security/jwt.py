"""JWTs of one issuer: verified once by its keys, then remembered until they expire or the keys change.

Law of this file: pure. Keys and the time are given. The key decides which algorithm verifies, by its family;
the token's header only has to agree. A `kid` is looked up among the issuer's keys. Keys and addresses that a
token carries (`jwk`, `jku`, `x5c`, `x5u`) are never used. Sizes and nesting are bounded before anything is
parsed, and whatever does not fit raises JwtError, whose words repeat nothing of the token.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from shoal.agent.security.access import ANONYMOUS, Identity, Proof
from shoal.agent.security.jwt_keys import ALGORITHMS, KEY_ID_CHARACTERS_MAX, IssuerKey, KeySet, read_object
from shoal.agent.security.principals import ROLES_OF_ONE_MAX, PrincipalError, check_principal
from shoal.agent.security.rules import ROLE_CHARACTERS_MAX
from shoal.errors import ShoalError

JWT_CHARACTERS_MAX: Final = 4_096
"""As of the whole header Authorization."""
HEADER_CHARACTERS_MAX: Final = 1_024
HEADER_BRACKETS_MAX: Final = 16
CLAIMS_MAX: Final = 64
CLAIM_BRACKETS_MAX: Final = 64
"""Objects and lists of the claims."""
LIFETIME_MS_MAX: Final = 24 * 3_600_000
"""From now to the expiry: nobody can revoke a JWT before. Issuers give minutes to a day."""
CLOCK_DIFFERENCE_MS_MAX: Final = 60_000
"""The issuer's clock may be so far ahead. An expiry has no grace."""
TYPES: Final = frozenset(("jwt", "at+jwt", "application/at+jwt"))
"""Of `typ`, where it stands: others are for other ends, such as a logout, though the same keys sign them."""
KEY_NAME_BYTES: Final = 16
REMEMBERED_MAX: Final = 4_096
"""Verified tokens. When full they are forgotten, not searched."""
_BASE64URL: Final = r"((?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-][AQgw]|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048])?)"
"""In its one form: bits of the last letter that stand for nothing are 0 (RFC 4648, 3.5), so that no two texts
are the same JWT."""
_JWT: Final = re.compile(rf"{_BASE64URL}\.{_BASE64URL}\.{_BASE64URL}")
_MS: Final = 1_000
_SECONDS_MAX: Final = 1 << 53


class JwtError(ValueError):
    """A JWT that proves nothing. Its words repeat nothing of it."""


class UnknownKeyError(JwtError):
    """A JWT whose key the issuer has not published, as far as this agent has heard."""


class Issuer(NamedTuple):
    """The issuer and audience that tokens have to name, and the claims with principal and roles."""

    name: str
    audience: str
    principal_claim: str = "sub"
    roles_claim: str | None = None


def key_name(key: IssuerKey, issuer: Issuer) -> str:
    """Of a key and the settings that it is believed by: sessions of its JWTs end with either."""
    settings = "\0".join((issuer.name, issuer.audience, issuer.principal_claim, issuer.roles_claim or ""))
    return blake2b(settings.encode() + b"\0" + key.der, digest_size=KEY_NAME_BYTES).hexdigest()


def is_jwt(text: str) -> bool:
    """Whether a bearer is to be read as a JWT: it has two dots, and tokens of the cluster have none."""
    return text.count(".") == 2


def verify(text: str, keys: KeySet, issuer: Issuer, now_ms: int) -> Identity:
    """Of the wall clock. Raises JwtError, and nothing else."""
    key, algorithm = _key_of(text, keys)
    claims = _claims_of(text, key, algorithm, issuer)
    expires_ms = _expiry(claims, now_ms)
    return Identity(_principal(claims, issuer), Proof.JWT, expires_ms, _roles(claims, issuer))


def _key_of(text: str, keys: KeySet) -> tuple[IssuerKey, str]:
    """The key that has to have signed it, and the algorithm."""
    if len(text) > JWT_CHARACTERS_MAX:
        raise JwtError(f"the JWT has over {JWT_CHARACTERS_MAX} characters")
    parts = _JWT.fullmatch(text)
    if parts is None or len(parts[1]) > HEADER_CHARACTERS_MAX:
        raise JwtError("this is no JWT: one is three texts of base64url with dots between them")
    header = _object(parts[1], HEADER_BRACKETS_MAX, "header")
    if len(_object(parts[2], CLAIM_BRACKETS_MAX, "claims")) > CLAIMS_MAX:
        raise JwtError(f"the JWT has over {CLAIMS_MAX} claims")
    algorithm, key_id, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise JwtError("the JWT's alg is none that is taken: RS, PS and ES with 256 to 512, and EdDSA are")
    if "crit" in header or "b64" in header or not isinstance(kind, str) or kind.lower() not in TYPES:
        raise JwtError("the JWT is of another type, or has a header (crit, b64) that is not understood")
    if key_id is not None and not (isinstance(key_id, str) and 0 < len(key_id) <= KEY_ID_CHARACTERS_MAX):
        raise JwtError("the JWT's kid is no name of a key")
    key = keys.find(key_id, algorithm)
    if key is not None:
        return key, algorithm
    if key_id is None:
        raise JwtError("the JWT names no key (kid), and not just one of its issuer's keys fits its alg")
    if keys.knows(key_id):
        raise JwtError("the JWT's alg is not that of the key that it names")
    raise UnknownKeyError("the JWT's key is none that its issuer has published")


def _object(part: str, brackets_max: int, what: str) -> dict[str, Any]:
    try:
        return read_object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), brackets_max)
    except ValueError:
        raise JwtError(
            f"the {what} of the JWT: no JSON object in base64url, a name twice, or over {brackets_max}"
            " objects and lists"
        ) from None


def _claims_of(text: str, key: IssuerKey, algorithm: str, issuer: Issuer) -> dict[str, Any]:
    """Once the signature, the issuer and the audience are right. Times are looked at by a given clock, not by
    the library's."""
    import jwt

    options: jwt.types.Options = {
        "require": ["exp", "iss", "aud"],
        "verify_signature": True,
        "verify_aud": True,
        "verify_iss": True,
        "verify_exp": False,
        "verify_nbf": False,
        "verify_iat": False,
        "verify_sub": False,
        "verify_jti": False,
    }
    try:
        return jwt.decode(
            text,
            key.public,
            algorithms=[algorithm],
            audience=issuer.audience,
            issuer=issuer.name,
            options=options,
        )
    except jwt.MissingRequiredClaimError as error:
        raise JwtError(f"the JWT has no {error.claim}: exp, iss and aud are required") from None
    except jwt.InvalidAudienceError:
        raise JwtError("the JWT is for another audience than jwt_audience") from None
    except jwt.InvalidIssuerError:
        raise JwtError("the JWT is of another issuer than jwt_issuer") from None
    except jwt.InvalidSignatureError:
        raise JwtError("the JWT's signature is not that of its issuer's key") from None
    except jwt.PyJWTError:
        raise JwtError("this is no JWT that can be verified") from None


def _expiry(claims: dict[str, Any], now_ms: int) -> int:
    """In milliseconds of the wall clock."""
    expires_ms = _time(claims, "exp")
    if now_ms >= expires_ms:
        raise JwtError("the JWT has expired: ask its issuer for another")
    if expires_ms - now_ms > LIFETIME_MS_MAX + CLOCK_DIFFERENCE_MS_MAX:
        raise JwtError("the JWT expires in over 24 hours: let its issuer give shorter ones, or set the clock")
    for name in ("nbf", "iat"):
        if name in claims and _time(claims, name) - now_ms > CLOCK_DIFFERENCE_MS_MAX:
            raise JwtError(f"the JWT is not valid yet ({name}), or this agent's clock is behind")
    return expires_ms


def _time(claims: dict[str, Any], name: str) -> int:
    value = claims[name]
    # The comparison comes first and alone: math.isfinite() raises for an integer that no float can hold.
    if type(value) not in (int, float) or not 0 < value < _SECONDS_MAX:
        raise JwtError(f"the JWT's {name} is no time")
    return int(value * _MS)


def _principal(claims: dict[str, Any], issuer: Issuer) -> str:
    name = claims.get(issuer.principal_claim)
    try:
        if isinstance(name, str) and name != ANONYMOUS:
            check_principal(name, ())
            return name
    except PrincipalError:
        pass
    raise JwtError(
        f"the JWT's claim {issuer.principal_claim} is no name of a principal: 1 to 256 of letters, digits,"
        " . _ @ + : / | - (jwt_principal_claim names another claim)"
    )


def _roles(claims: dict[str, Any], issuer: Issuer) -> tuple[str, ...]:
    """Beside those that the principal has. Roles that do not exist grant nothing."""
    given = None if issuer.roles_claim is None else claims.get(issuer.roles_claim)
    if given is None:
        return ()
    names = given.split() if isinstance(given, str) else given
    if not isinstance(names, list) or not all(
        isinstance(name, str) and len(name) <= ROLE_CHARACTERS_MAX for name in names
    ):
        raise JwtError(f"the JWT's claim {issuer.roles_claim} is no list of roles")
    roles = tuple(sorted(set(names)))
    if len(roles) > ROLES_OF_ONE_MAX:
        raise JwtError(f"the JWT's claim {issuer.roles_claim} has over {ROLES_OF_ONE_MAX} roles")
    return roles


class Verifier:
    """Of one agent: its issuer's keys as they are now, and the tokens that they have verified."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._keys: KeySet | None = None
        self._names: frozenset[str] = frozenset()
        self._known: dict[bytes, Identity] = {}
        self.version = 0
        """Another number with other keys: all that was verified before is void."""
        self.ask: Callable[[], bool] = lambda: False
        """Called for a key that is not known: whether a look for others is under way, so that it is worth to
        ask again."""

    def __repr__(self) -> str:
        return f"Verifier({self._keys} version={self.version})"

    @property
    def keys(self) -> KeySet | None:
        """None before any were read."""
        return self._keys

    def use(self, keys: KeySet) -> None:
        """From now on these."""
        self._keys = keys
        self._names = frozenset(key_name(key, self._issuer) for key in keys.all())
        self._known.clear()
        self.version += 1

    def identify(self, text: str, now_ms: int) -> Identity:
        """Raises ShoalError unauthenticated; not-ready while keys are looked for that may be the token's."""
        if self._keys is None:
            raise _no_keys()
        token_hash = hashlib.sha256(text.encode()).digest()
        known = self._known.get(token_hash)
        if known is not None and known.expires_ms is not None and now_ms < known.expires_ms:
            return known
        try:
            identity = verify(text, self._keys, self._issuer, now_ms)
        except UnknownKeyError as error:
            if self.ask():
                text = "this agent looks for a key of the issuer of JWTs that it does not know: ask again"
                raise ShoalError("not-ready", text) from None
            raise ShoalError("unauthenticated", str(error)) from None
        except JwtError as error:
            raise ShoalError("unauthenticated", str(error)) from None
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[token_hash] = identity
        return identity

    def key_name_of(self, text: str) -> str:
        """The name of the key of a JWT that identify() has taken."""
        assert self._keys is not None
        return key_name(_key_of(text, self._keys)[0], self._issuer)

    def has_key(self, name: str) -> bool:
        """Whether JWTs of that key are still taken. Raises ShoalError not-ready before any keys are known."""
        if self._keys is None:
            raise _no_keys()
        return name in self._names


def _no_keys() -> ShoalError:
    return ShoalError("not-ready", "this agent has no keys of the issuer of JWTs yet: ask again")
