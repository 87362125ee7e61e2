"""Hostile JWTs, signed by the issuer's own keys or not; and an independent reader that says which are valid.

The reader shares no code with the agent: it verifies by the primitives of `cryptography`, takes base64url in
its one canonical form, and reads each bound from docs/security.md.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import re
from collections.abc import Callable
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from jwt_issuer import AUDIENCE, ISSUER, NOW_S, base64url, key, public_jwk, public_pem

from tests.agent.credential_fuzz.texts import changed

Parts = tuple[bytes, bytes, bytes]
HASHES: Final = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
CURVES: Final = {"ES256": ("P-256", 32), "ES384": ("P-384", 48), "ES512": ("P-521", 66)}
ORDERS: Final = {
    "P-256": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
}
KINDS: Final = {"P-256": "ES256", "Ed25519": "EdDSA", "P-384": "ES384", "RSA": "RS256"}
PUBLISHED: Final = ("P-256", "P-384", "Ed25519", "RSA")
ALL_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", *CURVES, "EdDSA")
OTHER_ALGORITHMS: Final = (
    "none", "None", "nOnE", "", "HS256", "HS384", "HS512", "es256", "ES256K", "RS1", "dir", "A256KW",
    "RSA-OAEP",
    "ES256 ", "ES256\x00", None, 0, True, ["ES256"], {"alg": "ES256"},
)  # fmt: skip
PATHS: Final = ("../../etc/passwd", "/dev/zero", "P-256\x00", "P-256' OR '1'='1", "http://evil.example/",
"p-256",
                " P-256", "k" * 257, "", None, 0, ["P-256"], {"kid": "P-256"}, "\ud800")  # fmt: skip
TIMES: Final = (
    None, True, False, "", "1800000600", [], {}, -1, 0, 0.5, NOW_S - 1, NOW_S, NOW_S + 0.001, NOW_S + 1,
    NOW_S + 61,
    NOW_S + 86_400, NOW_S + 86_460, NOW_S + 86_461, NOW_S + 3.15e13, 1 << 53, 1 << 64, 10**400, 1e308, -1e308,
)  # fmt: skip
TEXTS: Final = (
    None, 0, True, "", " ", "ann", "ANN", "ann ", "bootstrap", "anonymous", "a" * 128, "a" * 129, "../ann",
    "ann\x00",
    "ann\n", "\ud800", "\u0430nn", ["ann"], {"sub": "ann"}, "shoal://fish/agent", ISSUER, AUDIENCE,
    ISSUER[:-1],
    [ISSUER], [AUDIENCE], [AUDIENCE, "x"], [AUDIENCE, 7], [[AUDIENCE]], ["x"], [], ISSUER.upper(),
    AUDIENCE + " ",
)  # fmt: skip
ROLES: Final = (
    None, "viewer", "admin viewer", ["viewer"], ["a"] * 17, [f"r{n}" for n in range(17)], ["x" * 320],
    ["x" * 321],
    [["admin"]], {"admin": True}, 7, True, "", [], [""], ["producer:*"], ["producer:a*b"],
    ["consumer:_audit"],
    ["\ud800"], ["producer:\x00"],
)  # fmt: skip
RAW: Final = (
    b"", b"[]", b"null", b"{", b"{}", b'"x"', b"\xef\xbb\xbf{}", b"{}{}", b"{} ",
    b'{"sub":"ann","sub":"root"}',
    b"\xff\xfe{\x00}\x00", b'{"a":NaN}', b'{"a":' + b"9" * 5_000 + b"}", b'{"a":' * 200 + b"1" + b"}" * 200,
    b"[" * 2_900, b'{"deep":' + b"[" * 1_200 + b"]" * 1_200 + b"}",
)  # fmt: skip


def signature(kind: str, algorithm: str, data: bytes) -> bytes:
    """By the private key of this kind; the algorithm belongs to it."""
    private = key(kind)
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return private.sign(data)
    if isinstance(private, rsa.RSAPrivateKey):
        return private.sign(data, _rsa_padding(algorithm), HASHES[algorithm[2:]]())
    _, size = CURVES[KINDS.get(kind, "ES256")]
    r, s = decode_dss_signature(private.sign(data, ec.ECDSA(HASHES[KINDS.get(kind, "ES256")[2:]]())))
    return r.to_bytes(size) + s.to_bytes(size)


def _rsa_padding(algorithm: str) -> padding.AsymmetricPadding:
    if algorithm.startswith("RS"):
        return padding.PKCS1v15()
    digest = HASHES[algorithm[2:]]()
    return padding.PSS(padding.MGF1(digest), digest.digest_size)


def joined(head: bytes, body: bytes, signer: Callable[[bytes], bytes]) -> str:
    text = f"{base64url(head)}.{base64url(body)}"
    return f"{text}.{base64url(signer(text.encode()))}"


def good_claims(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": rng.choice(("ann", "bob")),
        "exp": NOW_S + 600,
    }
    if rng.random() < 0.3:
        made["aud"] = ["other", AUDIENCE]
    if rng.random() < 0.3:
        made |= {"nbf": NOW_S, "iat": NOW_S - 1, "jti": "1"}
    if rng.random() < 0.3:
        made["roles"] = rng.choice((["viewer"], "viewer operator"))
    return made


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


def hostile_claims(rng: random.Random) -> bytes:
    made = good_claims(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        match rng.randrange(8):
            case 0 | 1:
                made[rng.choice(("exp", "nbf", "iat"))] = rng.choice(TIMES)
            case 2 | 3:
                made[rng.choice(("iss", "aud", "sub"))] = rng.choice(TEXTS)
            case 4:
                made["roles"] = rng.choice(ROLES)
            case 5:
                made.pop(rng.choice(tuple(made) or ("x",)), None)
            case 6:
                made["deep"] = nested(rng.choice((1, 20, 63, 64, 300)))
            case 7:
                made |= {f"claim{n}": n for n in range(rng.choice((1, 55, 60, 64, 200)))}
    raw = json.dumps(made).encode()
    if rng.random() < 0.1:
        raw = rng.choice((rng.choice(RAW), raw[:-1] + b',"sub":"root"}', raw + b" ", b" " + raw,
        raw + b"\x00",
                          raw.decode().encode("utf-16"), raw[: rng.randrange(len(raw))],
                          raw.replace(b'"sub"', b'"s\\u0075b"'),
                          raw.replace(b"600", b"6e2"), raw.replace(b'"exp": ', b'"exp": 0')))  # fmt: skip
    return raw


def hostile_head(rng: random.Random, kind: str, algorithm: str) -> bytes:
    made: dict[str, Any] = {"alg": algorithm, "kid": kind, "typ": "JWT"}
    for _ in range(rng.choice((0, 1, 1, 2))):
        match rng.randrange(9):
            case 0:
                made["alg"] = rng.choice(OTHER_ALGORITHMS)
            case 1:
                made["alg"] = rng.choice(ALL_ALGORITHMS)
            case 2:
                made["kid"] = rng.choice((*PATHS, *PUBLISHED, "other"))
            case 3:
                made["typ"] = rng.choice(
                    (None, "jwt", "at+jwt", "application/at+jwt", "logout+jwt", "JOSE", 1, "", "JWT ")
                )
            case 4:
                made[rng.choice(("jku", "x5u"))] = rng.choice(
                    ("https://evil.example/keys", "file:///etc/passwd", 1)
                )
            case 5:
                made["jwk"] = public_jwk("other")
            case 6:
                made[rng.choice(("crit", "b64", "zip", "cty", "x5c", "enc", "epk", "p2c"))] = rng.choice(
                    (["exp"], [], False, True, "DEF", "JWT", nested(5), 10**9, ["MII"])
                )
            case 7:
                made.pop(rng.choice(("alg", "kid", "typ")), None)
            case 8:
                made["x"] = rng.choice((nested(20), "x" * 900, "x" * 300, "\ud800"))
    raw = json.dumps(made).encode()
    if rng.random() < 0.05:
        raw = rng.choice(
            (*RAW, raw[:-1] + b',"alg":"none"}', b'{"alg":"none",' + raw[1:], raw + b"\n", b"\t" + raw)
        )
    return raw


def hostile_signature(rng: random.Random, kind: str, algorithm: str, data: bytes) -> bytes:
    """As a forger would make one."""
    true = signature(kind, algorithm, data)
    match rng.randrange(11):
        case 0:
            return b""
        case 1:
            return bytes(len(true))
        case 2:
            return true[: rng.randrange(len(true))]
        case 3:
            return b"\0" + true
        case 4:
            at = rng.randrange(len(true))
            return true[:at] + bytes((true[at] ^ (1 << rng.randrange(8)),)) + true[at + 1 :]
        case 5:
            return hmac.digest(public_pem(kind), data, hashlib.sha256)
        case 6 if kind == "P-256":
            r, s = int.from_bytes(true[:32]), int.from_bytes(true[32:])
            other = rng.choice(
                ((r, ORDERS[kind] - s), (s, r), (r, s + ORDERS[kind]), (0, s), (ORDERS[kind], s), (r, 0))
            )
            return b"".join(value.to_bytes(max(32, (value.bit_length() + 7) // 8)) for value in other)
        case 7 if kind == "P-256":
            return encode_dss_signature(int.from_bytes(true[:32]), int.from_bytes(true[32:]))
        case 8:
            return signature("other", "ES256", data)
        case 9:
            return true + true
        case 10:
            return rng.randbytes(len(true))
    return true


def hostile(rng: random.Random) -> str:
    """A JWT that is good, or nearly."""
    kind = rng.choice(
        ("P-256", "P-256", "P-256", "Ed25519", "P-384", "RSA") if rng.random() < 0.2 else ("P-256", "Ed25519")
    )
    algorithm = rng.choice(("RS256", "PS256", "RS512")) if kind == "RSA" else KINDS[kind]
    head = (
        hostile_head(rng, kind, algorithm)
        if rng.random() < 0.4
        else json.dumps({"alg": algorithm, "kid": kind}).encode()
    )
    body = hostile_claims(rng) if rng.random() < 0.5 else json.dumps(good_claims(rng)).encode()
    if rng.random() < 0.2:
        text = joined(head, body, lambda data: hostile_signature(rng, kind, algorithm, data))
    else:
        text = joined(head, body, lambda data: signature(kind, algorithm, data))
    if rng.random() < 0.35:
        text = changed(rng, text)
    if rng.random() < 0.03:
        text = _wrapped(rng, text, kind, algorithm)
    return text


def _wrapped(rng: random.Random, text: str, kind: str, algorithm: str) -> str:
    """In another form of JOSE: nested, encrypted, detached, as JSON."""
    parts = [*text.split("."), "", "", ""][:3]
    match rng.randrange(4):
        case 0:
            head = json.dumps({"alg": algorithm, "kid": kind, "cty": "JWT"}).encode()
            return joined(
                head, text.encode("utf-8", "replace"), lambda data: signature(kind, algorithm, data)
            )
        case 1:
            return f"{parts[0]}..{parts[2]}"
        case 2:
            return ".".join((*parts, "AAAA", "AAAA"))
    return json.dumps({"protected": parts[0], "payload": parts[1], "signature": parts[2]})


# ---- which are valid ---------------------------------------------------------------------------------------

Valid = tuple[str, int, tuple[str, ...]]
"""Principal, end in milliseconds, roles."""
_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]+\Z", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9._@+:/|-]{0,255}\Z", re.ASCII)


class Not(Exception):
    """It is not valid."""


def valid(text: str, now_ms: int, published: tuple[str, ...] = PUBLISHED) -> Valid | None:
    """Who it is, by the strict reading; None for a JWT that is none."""
    try:
        return _valid(text, now_ms, published)
    except (Not, InvalidSignature):
        return None


def need(fact: bool) -> None:
    if not fact:
        raise Not


def _part(text: str) -> bytes:
    need(_ALPHABET.match(text) is not None and len(text) % 4 != 1)
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    need(base64.b64encode(data, altchars=b"-_").rstrip(b"=").decode() == text)
    return data


def _object(data: bytes, brackets: int) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len({name for name, _ in pairs}) == len(pairs))
        return dict(pairs)

    def never(_: str) -> None:
        raise Not

    need(sum(data.count(one) for one in (b"{", b"[")) <= brackets)
    try:
        found = json.loads(str(data, "utf-8"), object_pairs_hook=once, parse_constant=never)
    except ValueError:
        raise Not from None
    need(type(found) is dict)
    return found


def _valid(text: str, now_ms: int, published: tuple[str, ...]) -> Valid:
    need(len(text) <= 4_096)
    parts = text.split(".")
    need(len(parts) == 3 and len(parts[0]) <= 1_024)
    head, body, signed = (_part(part) for part in parts)
    header, claims = _object(head, 16), _object(body, 64)
    need(len(claims) <= 64)
    need("crit" not in header and "b64" not in header)
    kind = header.get("typ", "JWT")
    need(type(kind) is str and kind.lower() in ("jwt", "at+jwt", "application/at+jwt"))
    algorithm = header.get("alg")
    need(type(algorithm) is str and algorithm in ALL_ALGORITHMS)
    fitting = [name for name in published if _fits(name, algorithm)]
    if "kid" in header:
        need(type(header["kid"]) is str and header["kid"] in fitting)
        fitting = [header["kid"]]
    need(len(fitting) == 1)
    _verify(fitting[0], algorithm, signed, text.rpartition(".")[0].encode())
    return _claims(claims, now_ms)


def _fits(kind: str, algorithm: str) -> bool:
    if kind == "RSA":
        return algorithm[:2] in ("RS", "PS")
    return algorithm == {"Ed25519": "EdDSA", **{curve: name for name, (curve, _) in CURVES.items()}}[kind]


def _verify(kind: str, algorithm: str, signed: bytes, data: bytes) -> None:
    public: Any = key(kind).public_key()
    if kind == "Ed25519":
        public.verify(signed, data)
    elif kind == "RSA":
        public.verify(signed, data, _rsa_padding(algorithm), HASHES[algorithm[2:]]())
    else:
        size = CURVES[algorithm][1]
        need(len(signed) == 2 * size)
        r, s = int.from_bytes(signed[:size]), int.from_bytes(signed[size:])
        public.verify(encode_dss_signature(r, s), data, ec.ECDSA(HASHES[algorithm[2:]]()))


def _time(value: Any) -> float:
    need(type(value) in (int, float) and 0 < value < 2**53)
    return value


def _claims(claims: dict[str, Any], now_ms: int) -> Valid:
    need(claims.get("iss") == ISSUER)
    audience = claims.get("aud")
    audiences = audience if type(audience) is list else [audience]
    need(all(type(one) is str for one in audiences) and AUDIENCE in audiences)
    end_ms = int(_time(claims.get("exp")) * 1_000)
    need(now_ms < end_ms <= now_ms + 24 * 3_600_000 + 60_000)
    for name in ("nbf", "iat"):
        if name in claims:
            need(int(_time(claims[name]) * 1_000) <= now_ms + 60_000)
    principal = claims.get("sub")
    need(type(principal) is str and _NAME.match(principal) is not None)
    need(principal not in ("anonymous", "bootstrap"))
    roles = claims.get("roles")
    names = [] if roles is None else roles.split() if type(roles) is str else roles
    need(type(names) is list and all(type(one) is str and len(one) <= 320 for one in names))
    need(len(set(names)) <= 16)
    return principal, end_ms, tuple(sorted(set(names)))
