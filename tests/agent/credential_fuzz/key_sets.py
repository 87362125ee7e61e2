"""Hostile key sets (JWKS) of an issuer, by changed keys and changed bytes."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt_issuer import base64url, number, public_jwk

from shoal.agent.security.jwt_keys import KeySetError, keys_from
from tests.agent.credential_fuzz.jwts import ALL_ALGORITHMS, OTHER_ALGORITHMS, PATHS, PUBLISHED, RAW, nested
from tests.agent.credential_fuzz.texts import changed

VALUES: Final = (
    None, True, 0, "", "AQAB", "A", "AQ", number(3), number(1 << 40), base64url(bytes(32)),
    base64url(b"\xff" * 32),
    base64url(b"\xff" * 1_200), "P-256", "P-192", "secp256k1", "Ed448", "RSA", "oct", "EC", "OKP", "rsa",
    "sig", "enc",
    ["verify"], ["sign"], ["encrypt"], [], {}, [[]], "x" * 3_000, "=", "AQAB=", "\u0430",
)  # fmt: skip
MEMBERS: Final = ("kty", "kid", "n", "e", "crv", "x", "y", "use", "key_ops", "alg", "k", "d", "x5c", "oth")


def hostile(rng: random.Random) -> bytes:
    """A document of one to four keys, one of them odd; or of odd bytes."""
    keys: list[Any] = [public_jwk(rng.choice(PUBLISHED)) for _ in range(rng.choice((1, 1, 2, 4)))]
    for _ in range(rng.choice((1, 1, 2, 3))):
        odd = rng.choice(keys)
        if not isinstance(odd, dict):
            continue
        match rng.randrange(6):
            case 0 | 1 | 2:
                odd[rng.choice(MEMBERS)] = rng.choice((*VALUES, *PATHS, *ALL_ALGORITHMS, *OTHER_ALGORITHMS))
            case 3:
                odd.pop(rng.choice(tuple(odd) or ("x",)), None)
            case 4:
                keys[rng.randrange(len(keys))] = rng.choice((None, [], "key", 1, nested(30)))
            case 5:
                keys = (keys * rng.choice((1, 20, 70)))[:80]
    document: Any = rng.choice(
        ({"keys": keys}, {"keys": keys}, {"keys": keys, "keyz": []}, keys, {"Keys": keys})
    )
    raw = json.dumps(document).encode()
    if rng.random() < 0.3:
        raw = rng.choice((changed(rng, raw.decode()).encode("utf-8", "surrogatepass"), rng.choice(RAW),
        raw[:-1],
                          raw + b" " * 70_000, raw.replace(b'"kty"', b'"kty": "oct", "kty"')))  # fmt: skip
    return raw


def check_key_set(rng: random.Random) -> bool:
    """Whether it was taken. AssertionError for a key that may verify nothing."""
    document = hostile(rng)
    try:
        found = keys_from(document)
    except KeySetError:
        return False
    members = json.loads(document)["keys"]
    assert len(document) <= 65_536, len(document)
    assert len(found) <= len(members) <= 64
    assert not any("d" in one for one in members), "a private key was taken"
    for key in found._keys:
        public = key.public
        if isinstance(public, rsa.RSAPublicKey):
            assert 2_048 <= public.key_size <= 8_192
            fitting = {name for name in ALL_ALGORITHMS if name[:2] in ("RS", "PS")}
        elif isinstance(public, ec.EllipticCurvePublicKey):
            fitting = {{"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}[public.curve.name]}
        else:
            assert isinstance(public, ed25519.Ed25519PublicKey)
            fitting = {"EdDSA"}
        assert key.algorithms
        assert key.algorithms <= fitting, f"{key} of {document[:2_000]!r}"
        assert key.key_id is None or 0 < len(key.key_id) <= 256
    return True
