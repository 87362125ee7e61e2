"""An issuer of JWTs for tests: its keys, its key set, and tokens as good or bad as a test wants them."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
from typing import Any, Final, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWS

from shoal.agent.security.jwt import Issuer

NOW_S: Final = 1_800_000_000
NOW_MS: Final = NOW_S * 1_000
ISSUER: Final = "https://login.example.com/"
AUDIENCE: Final = "shoal-fish"
CONFIGURED: Final = Issuer(ISSUER, AUDIENCE, "sub", "roles")
RSA_PRIMES: Final = (
    (
        "e91aef67125d381914313a367928310c5e4324350431cbbd06716bd52f5e1f343e37016761db34160328c6dd61b203de"
        "26aa0b596ab56383f7fb3e1f687648d8b626f12363bd3b5907a4b81b6885ce53386a58736a269e367bc846ddea9479e6"
        "4de8ea9a661663304ffd671e6b0edc53ef256f4d505ab27e4647e19dda206d85"
    ),
    (
        "b845250267940e2e4b85c32d99476607f0a952881338add5fc5f41312314534dc9371d23800f9c431daec91644f86cd2"
        "bddfc9b317b539d63b7ee16daafce8145ef46f6468b42f525680827eca7ee78f6fabda980d0b53510c6b4ea9786deb13"
        "082be11afd0684e926938cac5de291fdc7f131a36698796e240527be7d151f29"
    ),
)
"""Of a key that is used nowhere else: to find primes takes longer than all tests of this file's users."""
PrivateKey: TypeAlias = "ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def number(value: int) -> str:
    return base64url(value.to_bytes((value.bit_length() + 7) // 8))


@functools.cache
def key(kind: str) -> PrivateKey:
    """P-256, P-384, P-521, Ed25519, RSA; or `other`, of P-256, which no key set has."""
    match kind:
        case "RSA":
            p, q = (int(prime, 16) for prime in RSA_PRIMES)
            d = pow(65_537, -1, (p - 1) * (q - 1))
            public = rsa.RSAPublicNumbers(65_537, p * q)
            return rsa.RSAPrivateNumbers(
                p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), public
            ).private_key()
        case "Ed25519":
            return ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
        case "P-384":
            return ec.derive_private_key(384, ec.SECP384R1())
        case "P-521":
            return ec.derive_private_key(521, ec.SECP521R1())
    return ec.derive_private_key(256 if kind == "P-256" else 257, ec.SECP256R1())


def public_jwk(kind: str, **more: Any) -> dict[str, Any]:
    """Of one key, under its kind as `kid`."""
    private = key(kind)
    if isinstance(private, rsa.RSAPrivateKey):
        numbers = private.public_key().public_numbers()
        parts = {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
    elif isinstance(private, ed25519.Ed25519PrivateKey):
        raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        parts = {"kty": "OKP", "crv": "Ed25519", "x": base64url(raw)}
    else:
        point = private.public_key().public_numbers()
        size = (private.key_size + 7) // 8
        crv = "P-256" if kind == "other" else kind
        x, y = (base64url(one.to_bytes(size)) for one in (point.x, point.y))
        parts = {"kty": "EC", "crv": crv, "x": x, "y": y}
    return {"kid": kind, **parts, **more}


def key_set(*keys: dict[str, Any] | str) -> bytes:
    """The document; without keys that of P-256 and RSA."""
    chosen = keys or ("P-256", "RSA")
    return json.dumps({"keys": [public_jwk(one) if isinstance(one, str) else one for one in chosen]}).encode()


def claims(now_s: int = NOW_S, **other: Any) -> dict[str, Any]:
    """Good ones but for those that are given; None leaves one out."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now_s, "exp": now_s + 600}
    return {name: value for name, value in {**good, **other}.items() if value is not None}


def signed(
    payload: dict[str, Any] | bytes,
    kind: str = "P-256",
    algorithm: str = "ES256",
    **header: Any,
) -> str:
    """A JWT. `header`: beside alg, typ and kid; None leaves one out."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    headers = {"kid": kind, **header}
    given = {name: value for name, value in headers.items() if value is not None}
    return PyJWS().encode(data, key(kind), algorithm, headers=given)


def forged(header: dict[str, Any] | bytes, payload: dict[str, Any], secret: bytes | None) -> str:
    """Signed by HMAC-SHA-256 of a secret, or by nothing, whatever its header says."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = f"{base64url(head)}.{base64url(json.dumps(payload).encode())}"
    signature = b"" if secret is None else hmac.digest(secret, text.encode(), hashlib.sha256)
    return f"{text}.{base64url(signature)}"


def public_pem(kind: str) -> bytes:
    return key(kind).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def bad_jwts(now_s: int = NOW_S) -> dict[str, str]:
    """Each is refused, whenever it comes within some minutes of the time."""
    return bad_heads(now_s) | bad_claims(now_s) | bad_forms(now_s)


def bad_heads(now_s: int) -> dict[str, str]:
    """By algorithms and keys."""
    good = claims(now_s)
    attacker = public_jwk("other")
    return {
        "alg none": forged({"alg": "none", "kid": "P-256"}, good, None) + "AA",
        "alg none, no signature": forged({"alg": "none", "kid": "P-256"}, good, None),
        "alg of strange letters": forged({"alg": "nOnE", "kid": "P-256"}, good, b"x"),
        "no alg": forged({"kid": "P-256"}, good, b"x"),
        "alg is a list": forged({"alg": ["ES256"], "kid": "P-256"}, good, b"x"),
        "HS256 by the public key": forged({"alg": "HS256", "kid": "RSA"}, good, public_pem("RSA")),
        "RS256 by HMAC of the public key": forged({"alg": "RS256", "kid": "RSA"}, good, public_pem("RSA")),
        "ES256 by HMAC of the public key": forged(
            {"alg": "ES256", "kid": "P-256"}, good, public_pem("P-256")
        ),
        "alg of another family": forged({"alg": "ES256", "kid": "RSA"}, good, b"x"),
        "another key under the kid": signed(good, "other", kid="P-256"),
        "unknown kid": signed(good, "other"),
        "kid is a path": signed(good, kid="../../etc/passwd"),
        "kid is a path with a NUL": signed(good, kid="../../etc/passwd\0"),
        "kid is empty": signed(good, kid=""),
        "kid is long": signed(good, kid="k" * 300),
        "kid is a number": forged({"alg": "ES256", "kid": 1}, good, b"x"),
        "jku": signed(good, "other", kid="P-256", jku="https://attacker.example/keys"),
        "x5u": signed(good, "other", kid="P-256", x5u="https://attacker.example/cert"),
        "its own jwk": signed(good, "other", kid="P-256", jwk=attacker),
        "its own jwk, no kid": signed(good, "other", kid=None, jwk=attacker),
        "crit": signed(good, crit=["exp"]),
        "b64 false": forged({"alg": "ES256", "kid": "P-256", "b64": False}, good, b"x"),
        "a logout": signed(good, typ="logout+jwt"),
    }


def bad_claims(now_s: int) -> dict[str, str]:
    """Signed by the issuer's key all the same."""
    good = claims(now_s)
    return {
        "another issuer": signed(claims(now_s, iss="https://login.example.org/")),
        "issuer without its slash": signed(claims(now_s, iss=ISSUER.rstrip("/"))),
        "a list of issuers": signed(claims(now_s, iss=[ISSUER])),
        "no issuer": signed(claims(now_s, iss=None)),
        "another audience": signed(claims(now_s, aud="shoal")),
        "audiences, not this": signed(claims(now_s, aud=["a", "b"])),
        "no audience": signed(claims(now_s, aud=None)),
        "audience is a number": signed(claims(now_s, aud=7)),
        "no expiry": signed(claims(now_s, exp=None)),
        "expired": signed(claims(now_s, exp=now_s - 1)),
        "expires in a million years": signed(claims(now_s, exp=now_s + 31_557_600_000_000)),
        "expires in two days": signed(claims(now_s, exp=now_s + 2 * 86_400)),
        "expiry is a text": signed(claims(now_s, exp=str(now_s + 600))),
        "expiry is true": signed(claims(now_s, exp=True)),
        "expiry is no number": signed(json.dumps(claims(now_s, exp=float("nan"))).encode()),
        "expiry is endless": signed(json.dumps(good).replace(str(now_s + 600), "1e999").encode()),
        "expiry is negative": signed(claims(now_s, exp=-1)),
        "not before an hour": signed(claims(now_s, nbf=now_s + 3_600)),
        "issued in an hour": signed(claims(now_s, iat=now_s + 3_600)),
        "nbf is a list": signed(claims(now_s, nbf=[1])),
        "no principal": signed(claims(now_s, sub=None)),
        "principal is a number": signed(claims(now_s, sub=7)),
        "principal is a path": signed(claims(now_s, sub="../ann")),
        "principal is long": signed(claims(now_s, sub="a" * 257)),
        "the first token's principal": signed(claims(now_s, sub="bootstrap")),
        "anonymous": signed(claims(now_s, sub="anonymous")),
        "17 roles": signed(claims(now_s, roles=[f"role-{n}" for n in range(17)])),
        "a role is a list": signed(claims(now_s, roles=[["admin"]])),
        "roles are an object": signed(claims(now_s, roles={"admin": True})),
    }


def bad_forms(now_s: int) -> dict[str, str]:
    """By sizes and characters; and parts of two."""
    good = claims(now_s)
    nested: Any = "deep"
    for _ in range(300):
        nested = [nested]
    head, body, signature = signed(good).split(".")
    return {
        "a header of 300 lists": signed(good, x=nested),
        "300 nested claims": signed(claims(now_s, deep=nested)),
        "a thousand lists": signed(
            (json.dumps(good)[:-1] + ',"x":' + "[" * 1_000 + "]" * 1_000 + "}").encode()
        ),
        "65 claims": signed(claims(now_s, **{f"c{n}": n for n in range(65)})),
        "a claim twice": signed((json.dumps(good)[:-1] + ',"sub":"root"}').encode()),
        "claims are a list": signed(b"[]"),
        "claims are no JSON": signed(b"{"),
        "claims are no UTF-8": signed(b'{"sub":"\xff"}'),
        "header is no JSON": forged(b"{", good, b"x"),
        "signature of another": f"{head}.{body}.{signed(claims(now_s, sub='bob')).split('.')[2]}",
        "claims of another": f"{head}.{base64url(json.dumps(claims(now_s, sub='bob')).encode())}.{signature}",
        "signature cut": f"{head}.{body}.{signature[:-4]}",
        "signature of nothing": f"{head}.{body}.{base64url(bytes(64))}",
        "signature missing": f"{head}.{body}.",
        "two dots": "..",
        "padding": f"{head}.{body}.{signature}=",
        "over 4,000 characters": signed(claims(now_s, x="x" * 4_000)),
    }
