"""Hostile heads of requests to a real HTTP front, and an independent reader that says who may be let in.

The reader is lenient where parsers differ: a line counts under each reading of its end and its name. So what
the front serves has to be good under all of them. What is also good by the strict form has to be served.
"""

from __future__ import annotations

import base64
import json
import random
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from jwt_issuer import NOW_MS, NOW_S, claims, signed

from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.tokens import Token, make_token
from tests.agent.credential_fuzz import jwts
from tests.agent.credential_fuzz.texts import changed

BOBS, ANNS, BARE, EXPIRED, REVOKED, STRANGE, FIRST = (
    make_token(bytes((number,)) * 5, bytes((number, 255 - number)) * 16) for number in range(1, 8)
)
"""`bob` reads, writes and describes `orders*`; `ann` administers; `bare` has no rule. Of another cluster:
STRANGE. FIRST is the one of the configuration, which counts no more."""
LIVE: Final = {BOBS.reveal(): "bob", ANNS.reveal(): "ann", BARE.reveal(): "bare"}
AGENT: Final = PeerCertificate("shoal://fish/agent", is_agent=True)
BOB: Final = PeerCertificate("bob", is_agent=False)
NOBODY: Final = "anonymous"
AN_AGENT: Final = "an agent"


class Target(NamedTuple):
    """A request: what it does to which topic; empty for the cluster."""

    line: str
    action: str
    topic: str = ""
    body: bytes = b""


TARGETS: Final = (
    Target("POST /v1/topics/orders/records", "write", "orders", b"v"),
    Target("POST /v1/topics/hidden/records", "write", "hidden", b"v"),
    Target("GET /v1/topics/orders", "describe", "orders"),
    Target("GET /v1/topics/hidden", "describe", "hidden"),
    Target("GET /v1/topics/orders/partitions/0/records?offset=0", "read", "orders"),
    Target("GET /v1/topics/hidden/partitions/0/records?offset=0", "read", "hidden"),
    Target("GET /v1/principals", "admin"),
    Target("DELETE /v1/tokens/abcdefgh", "admin"),
    Target("GET /v1/topics", "list"),
    Target("GET /v1/agent", "cluster-describe"),
)


def may(principal: str, roles: tuple[str, ...], target: Target) -> bool:
    """The rules of this world, by hand."""
    action, topic = target.action, target.topic
    if principal in ("ann", AN_AGENT) or "admin" in roles:
        return True
    if action == "list":
        return principal != NOBODY
    if principal == "bob" and topic.startswith("orders") and action in ("read", "write", "describe"):
        return True
    if "viewer" in roles or "operator" in roles:
        return action in ("describe", "cluster-describe")
    return "producer:*" in roles and action in ("describe", "write")


@dataclass
class Case:
    """`secrets`: texts of which no part may come back."""

    target: Target
    head: bytes
    certificate: PeerCertificate | None
    secrets: list[str] = field(default_factory=list)


def hostile_value(rng: random.Random) -> str:
    """The value of an Authorization header: good, nearly good, or none at all."""
    roll = rng.random()
    if roll < 0.25:
        return f"Bearer {rng.choice((BOBS, ANNS, BARE)).reveal()}"
    if roll < 0.6:
        return changed(
            rng, f"Bearer {rng.choice((BOBS, ANNS, BARE, EXPIRED, REVOKED, STRANGE, FIRST)).reveal()}"
        )
    if roll < 0.7:
        return f"Bearer {rng.choice((EXPIRED, REVOKED, STRANGE, FIRST)).reveal()}"
    if roll < 0.85:
        return f"Bearer {jwts.hostile(rng)}"
    token = rng.choice((BOBS, ANNS))
    return rng.choice((
        f"Basic {base64.b64encode(b'bob:' + token.reveal().encode()).decode()}", f"Token {token.reveal()}",
        f"bearer {token.reveal()}", f"BEARER {token.reveal()}", f"Bearer  {token.reveal()}",
        f"Bearer\t{token.reveal()}",
        f"Bearer {token.reveal()}, Bearer {ANNS.reveal()}", f"Bearer {token.reveal()} {ANNS.reveal()}",
        token.reveal(),
        f"Bearer token={token.reveal()}", f'Bearer "{token.reveal()}"', f"Bearer {token.reveal()},",
        "Bearer", "", "Bearer ",
        f"Bearer {_other_check(token)}", f"Bearer {signed(claims(NOW_S))}", f"Negotiate {token.reveal()}",
        f"DPoP {signed(claims(NOW_S))}", "Bearer " + "A" * 8_192, "Bearer " + "=" * 4_089, "Bearer null",
    ))  # fmt: skip


def _other_check(token: Token) -> str:
    """The secret of one, with the check of another."""
    return token.reveal()[:-7] + ANNS.reveal()[-7:]


NAMES: Final = (
    "authorization", "AUTHORIZATION", "aUTHORIZATION", "Authorization ", " Authorization", "\tAuthorization",
    "Authorization\t", "Authorization\x00", "Author\x00ization", "Proxy-Authorization", "X-Authorization",
    "Authorization:", "Authori\u017fation", "Authorization\x0b", "Shoal-Authorization", "Cookie",
    "Set-Cookie",
    "Authorization\r", "X-A: b\r\nAuthorization", "X-A: b\nAuthorization", "X-A: b\rAuthorization",
    "\xa0Authorization",
)  # fmt: skip
MORE: Final = (
    ("Shoal-Principal", "ann"), ("shoal-principal", "ann"), ("SHOAL-PRINCIPAL", "bob"), ("Shoal_Principal",
    "ann"),
    ("Shoal-Principal ", "ann"), ("Shoal-Principal", ""), ("Shoal-Principal", "anonymous"),
    ("Shoal-Principal", "bob"),
    ("Shoal-Principal", "a" * 257), ("Shoal-Principal", "ann\x00"), ("Shoal-Principal", "bootstrap"),
    ("Shoal-Forwarded-By", "0" * 32), ("shoal-forwarded-by", "x"), ("Shoal-Forwarded-By", ""), ("Forwarded",
    "for=127.0.0.1"),
    ("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-User", "ann"), ("X-HTTP-Method-Override", "DELETE"),
    ("X-Original-URL", "/v1/principals"),
    ("Connection", "Authorization"), ("Connection", "keep-alive, Authorization"), ("X-SSL-Client-Verify",
    "SUCCESS"),
    ("Cookie", f"shoal_session={BOBS.reveal()}"), ("Cookie", "session=\x01"), ("Origin",
    "https://evil.example"), ("TE", "trailers"),
    ("Cookie", "__Host-shoal=AAAA.AAAA"), ("Upgrade", "h2c"), ("Expect", "100-continue"), ("X-Unknown", "1"),
)  # fmt: skip


def hostile(rng: random.Random) -> Case:
    """A head with one credential, none, several, or something that looks like one."""
    target = rng.choice(TARGETS)
    lines: list[tuple[str, str]] = []
    shown = [hostile_value(rng) for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 2)))]
    if len(shown) == 2 and rng.random() < 0.3:
        shown[1] = shown[0]
    for value in shown:
        lines.append((rng.choice(NAMES) if rng.random() < 0.12 else "Authorization", value))
    if rng.random() < 0.35:
        lines += [rng.choice(MORE) for _ in range(rng.choice((1, 1, 2)))]
    rng.shuffle(lines)
    line = target.line
    if rng.random() < 0.03:  # in the places of other protocols
        line += ("&" if "?" in line else "?") + f"access_token={BOBS.reveal()}"
    rows = [f"{line} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in lines)]
    if target.body:
        rows.append(f"Content-Length: {len(target.body)}")
    end = "\r\n"
    if rng.random() < 0.02:
        end = rng.choice(("\n", "\r", "\r\n ", "\r\n\t", "\n\r"))
    text = end.join(rows) + "\r\n\r\n"
    data = text.encode("utf-8" if rng.random() < 0.5 else "latin-1", "replace")
    if rng.random() < 0.03:
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice((b"\0", b"\r\n", b"\n", b":", b"\xff", b"")) + data[at + 1 :]
    certificate = rng.choice((None, None, None, None, BOB, AGENT))
    secrets = [value.removeprefix("Bearer ") for value in shown]
    return Case(
        target, data, certificate, [*secrets, *(token.reveal()[15:] for token in (BOBS, ANNS, FIRST))]
    )


# ---- who may be let in -------------------------------------------------------------------------------------

_STRICT: Final = re.compile(
    rb"(?:GET|POST|DELETE) /[!-~]* HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
)
_LINES: Final = re.compile(rb"\r\n|\n|\r")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] ([!-~]{1,4089})")
_BLANKS: Final = b" \t\r\n\x00\x0b\x0c\xa0"


def is_strict(case: Case) -> bool:
    """Whether the head has one meaning, and ends where it should."""
    is_formed = _STRICT.fullmatch(case.head) is not None and b"\r\nHost: 127.0.0.1\r\n" in case.head
    has_length = not case.target.body or b"\r\nContent-Length: %d\r\n" % len(case.target.body) in case.head
    return is_formed and has_length and case.head.startswith(b"%b HTTP" % case.target.line.encode())


def fields(head: bytes, name: bytes) -> list[bytes]:
    """The values of a header under every reading of lines and names."""
    rows = (row.partition(b":") for row in _LINES.split(head))
    return [value.strip(b" \t") for found, _, value in rows if found.strip(_BLANKS).lower() == name]


def bearer_of(value: bytes) -> tuple[str, tuple[str, ...]] | None:
    """Principal and roles that the value of an Authorization header proves."""
    try:
        found = _BEARER.fullmatch(value.decode("ascii"))
    except ValueError:
        return None
    if found is None:
        return None
    if found[1] in LIVE:
        return LIVE[found[1]], ()
    told = jwts.valid(found[1], NOW_MS)
    return None if told is None else (told[0], told[2])


def may_be_let_in(case: Case) -> bool:
    """Whether every reading of the head allows what it asks for."""
    values = fields(case.head, b"authorization")
    named = fields(case.head, b"shoal-principal")
    is_forwarded = bool(fields(case.head, b"shoal-forwarded-by") or named)
    is_agent = case.certificate is not None and case.certificate.is_agent
    if len(values) > 1 or (is_forwarded and not is_agent):
        return False
    who: tuple[str, tuple[str, ...]] | None
    if values:
        who = bearer_of(values[0])
    elif is_forwarded:
        who = (named[0].decode("latin-1") if named else NOBODY), ()
    elif case.certificate is not None:
        who = (AN_AGENT if is_agent else case.certificate.name), ()
    else:
        who = NOBODY, ()
    if len(named) > 1 or any(not 0 < len(one) <= 256 or not one.isascii() for one in named):
        return False
    return who is not None and may(*who, case.target)


# ---- answers -----------------------------------------------------------------------------------------------

REFUSALS: Final = {400: ("bad-request",), 401: ("unauthenticated",), 403: ("forbidden", "foreign-origin")}
TOO_LARGE: Final = (413, 431)
OTHER_PLACES: Final = (308, 404, 405)
"""Of a request line that was changed."""
ANSWER_BYTES_MAX: Final = 4_096


def fault_of_refusal(case: Case, status: int, head: str, body: bytes) -> str | None:
    """Why an answer is no refusal as described; None for one that is."""
    is_changed = not case.head.startswith(b"%b " % case.target.line.encode())
    further = (*TOO_LARGE, *(OTHER_PLACES if is_changed else ()), *((417,) if b"xpect:" in case.head else ()))
    if status not in REFUSALS and status not in further:
        return f"status {status}"
    if "\r\nContent-Type: application/problem+json" not in head or len(body) > ANSWER_BYTES_MAX:
        return "no problem document, or a large one"
    document = json.loads(body)
    if status in REFUSALS and document["code"] not in REFUSALS[status] and not is_changed:
        return f"code {document['code']}"
    if document["status"] != status or not document["detail"]:
        return "a document that does not fit"
    if (status == 401) != ('\r\nWWW-Authenticate: Bearer realm="shoal"' in head):
        return "a challenge is missing, or stands with another status"
    return None
