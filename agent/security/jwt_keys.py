"""An issuer's keys, from its key set (JWKS, RFC 7517): public ones, each for algorithms of its own family.

Law of this file: pure. The family of a key decides which algorithms it verifies, and nobody else does. There
is none for shared secrets (HS256 and its kin), so no public key is ever taken for one. Keys that a key set
has for other purposes, or that are too weak, are left out. A private key makes the whole set void.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    PublicKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey"

KEY_SET_BYTES_MAX: Final = 64 << 10
"""Of the document: that of a large issuer has 10 KiB."""
KEYS_MAX: Final = 64
KEY_SET_BRACKETS_MAX: Final = 512
"""Objects and lists of a key set: a key has up to three."""
KEY_ID_CHARACTERS_MAX: Final = 256
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
"""A check by a larger key takes milliseconds."""
RSA_EXPONENT_BITS_MAX: Final = 32
RSA_ALGORITHMS: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
EC_ALGORITHMS: Final[Mapping[str, str]] = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
EDWARDS_ALGORITHM: Final = "EdDSA"
ALGORITHMS: Final = RSA_ALGORITHMS | frozenset(EC_ALGORITHMS.values()) | {EDWARDS_ALGORITHM}
"""All that are taken at all. Each is asymmetric."""
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]+")
_BASE64_CHARACTERS_MAX: Final = 2 * RSA_BITS_MAX // 6


class KeySetError(ValueError):
    """A document that is no key set, or has no key to verify by. Its words say why, and repeat none of it."""


class IssuerKey(NamedTuple):
    """`der`: the public key as SubjectPublicKeyInfo, by which two are compared."""

    key_id: str | None
    algorithms: frozenset[str]
    der: bytes
    public: PublicKey

    def __repr__(self) -> str:
        return f"IssuerKey({'/'.join(sorted(self.algorithms))})"


class KeySet:
    """The keys that an issuer has now. A key's id is looked up, and never used for anything else."""

    __slots__ = ("_keys",)

    def __init__(self, keys: tuple[IssuerKey, ...]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeySet({len(self._keys)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self._identities() == other._identities()

    def __hash__(self) -> int:
        return hash(self._identities())

    def _identities(self) -> frozenset[tuple[str | None, frozenset[str], bytes]]:
        return frozenset((key.key_id, key.algorithms, key.der) for key in self._keys)

    def all(self) -> tuple[IssuerKey, ...]:
        """As the issuer lists them."""
        return self._keys

    def knows(self, key_id: str) -> bool:
        """Whether a key has this id, of whichever family."""
        return any(key.key_id == key_id for key in self._keys)

    def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """The one key that verifies this algorithm and has this id; without an id the only one that verifies
        it. None where there is none, or more than one."""
        found = [
            key
            for key in self._keys
            if algorithm in key.algorithms and (key_id is None or key.key_id == key_id)
        ]
        return found[0] if len(found) == 1 else None


def read_object(data: bytes, brackets_max: int) -> dict[str, Any]:
    """A JSON object in which no name stands twice. Raises ValueError, and nothing else; the depth of nesting
    is bounded before anybody parses it."""
    if data.count(b"{") + data.count(b"[") > brackets_max:
        raise ValueError(f"it has over {brackets_max} objects and lists")
    value = json.loads(data.decode("utf-8"), object_pairs_hook=each_once, parse_constant=no_number)
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def keys_from(document: bytes) -> KeySet:
    """Raises KeySetError, and nothing else."""
    if len(document) > KEY_SET_BYTES_MAX:
        raise KeySetError(f"it has over {KEY_SET_BYTES_MAX} bytes: a key set has some thousand")
    try:
        items = read_object(document, KEY_SET_BRACKETS_MAX).get("keys")
    except ValueError:
        raise KeySetError('it is no JSON object as `{"keys": [...]}`') from None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise KeySetError("it has no list of keys: the file or URL of a JWKS (RFC 7517) is needed")
    if len(items) > KEYS_MAX:
        raise KeySetError(f"it has {len(items)} keys; there may be {KEYS_MAX}")
    if any("d" in item for item in items):
        raise KeySetError("it has a private key, which belongs to the issuer alone: give public keys")
    keys = tuple(key for key in map(_key, items) if key is not None)
    if not keys:
        kinds = f"RSA of {RSA_BITS_MIN} bits or more, EC on P-256, P-384 or P-521, Ed25519"
        raise KeySetError(f"it has no public key that verifies signatures: {kinds}")
    return KeySet(keys)


def _key(item: Mapping[str, Any]) -> IssuerKey | None:
    """None for one that verifies no signatures here: of another purpose, kind or strength, or malformed."""
    key_id = item.get("kid")
    if key_id is not None and not (isinstance(key_id, str) and 0 < len(key_id) <= KEY_ID_CHARACTERS_MAX):
        return None
    operations = item.get("key_ops", ["verify"])
    if item.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    kind = item.get("kty")
    read = READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        return None
    try:
        public, algorithms = read(item)
    except ValueError:
        return None
    only = item.get("alg")
    if only is not None:
        algorithms = frozenset(one for one in algorithms if one == only)
    if not algorithms:
        return None
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return IssuerKey(key_id, algorithms, der, public)


def rsa_key(item: Mapping[str, Any]) -> tuple[PublicKey, frozenset[str]]:
    """With the algorithms that it may verify, as those below. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    modulus, exponent = (int.from_bytes(_bytes_of(item, name)) for name in ("n", "e"))
    if not RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX:
        raise ValueError("too few bits, or too many")
    if exponent.bit_length() > RSA_EXPONENT_BITS_MAX:
        raise ValueError("too large an exponent")
    return RSAPublicNumbers(exponent, modulus).public_key(), RSA_ALGORITHMS


def elliptic_key(item: Mapping[str, Any]) -> tuple[PublicKey, frozenset[str]]:
    """On one of three curves, each for one algorithm. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric import ec

    curves: dict[object, ec.EllipticCurve] = {
        "P-256": ec.SECP256R1(),
        "P-384": ec.SECP384R1(),
        "P-521": ec.SECP521R1(),
    }
    name = _text_of(item, "crv")
    if name not in curves:
        raise ValueError("another curve")
    x, y = (int.from_bytes(_bytes_of(item, coordinate)) for coordinate in ("x", "y"))
    public = ec.EllipticCurvePublicNumbers(x, y, curves[name]).public_key()
    return public, frozenset((EC_ALGORITHMS[name],))


def edwards_key(item: Mapping[str, Any]) -> tuple[PublicKey, frozenset[str]]:
    """Ed25519. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if _text_of(item, "crv") != "Ed25519":
        raise ValueError("another curve")
    return Ed25519PublicKey.from_public_bytes(_bytes_of(item, "x")), frozenset((EDWARDS_ALGORITHM,))


READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[PublicKey, frozenset[str]]]]] = {
    "RSA": rsa_key,
    "EC": elliptic_key,
    "OKP": edwards_key,
}
"""By `kty`. There is none for `oct`, shared secrets."""


def _text_of(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def _bytes_of(item: Mapping[str, Any], name: str) -> bytes:
    """Of base64url without padding. Raises ValueError."""
    text = _text_of(item, name)
    if len(text) > _BASE64_CHARACTERS_MAX or _BASE64.fullmatch(text) is None:
        raise ValueError(f"{name} is no base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ. Raises ValueError."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name stands twice")
    return value


def no_number(_: str) -> NoReturn:
    """For words that only some readers of JSON take. Raises ValueError."""
    raise ValueError("NaN and Infinity are no numbers of JSON")
