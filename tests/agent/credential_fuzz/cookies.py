"""Cookies with sessions in heads that have one meaning: good and hostile ones, beside others and twice; and
the reader that says who may be let in then.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from jwt_issuer import NOW_MS

from tests.agent.credential_fuzz import sessions
from tests.agent.credential_fuzz.heads import Case, fields, is_strict, may, may_be_let_in

NAME: Final = "__Host-shoal-session"
SHARE: Final = 0.2
NEAR: Final = (
    "shoal-session",
    "__host-shoal-session",
    "__Host-shoal-session2",
    "__Secure-shoal-session",
    "session",
)
SITES: Final = ("same-origin", "none", "same-site", "cross-site", "", "SAME-ORIGIN")


def with_cookie(rng: random.Random, case: Case) -> Case:
    """The same, in a share of cases with a cookie or several."""
    if rng.random() > SHARE or not is_strict(case):
        return case
    pairs = []
    for _ in range(rng.choice((1, 1, 1, 1, 2))):
        value = sessions.hostile(rng)
        if rng.random() < 0.5 or not value.isascii() or not value.isprintable() or set(value) & set('; ",'):
            value = sessions.good(rng)
        pairs.append(f"{NAME if rng.random() < 0.85 else rng.choice(NEAR)}={value}")
    if rng.random() < 0.3:
        pairs.insert(rng.randrange(len(pairs) + 1), "theme=dark")
    lines = f"Cookie: {'; '.join(pairs)}\r\n"
    if rng.random() < 0.2:
        lines += f"Sec-Fetch-Site: {rng.choice(SITES)}\r\n"
    if rng.random() < 0.7:  # alone, as browsers send it
        rows = case.head.split(b"\r\n")
        kept = [row for row in rows if not row.lower().startswith(b"authorization:")]
        case = replace(case, head=b"\r\n".join(kept))
    secrets = [*case.secrets, *(pair.partition("=")[2] for pair in pairs)]
    return replace(case, head=case.head[:-2] + lines.encode() + b"\r\n", secrets=secrets)


def shown(head: bytes) -> list[str]:
    """The sessions in it."""
    pairs = (pair.strip() for value in fields(head, b"cookie") for pair in value.decode("latin-1").split(";"))
    return [value for name, _, value in (pair.partition("=") for pair in pairs) if name == NAME]


def may_be_let_in_with_cookies(case: Case) -> bool:
    """Whether every reading of the head allows what it asks for. A cookie counts alone, for no other page."""
    given = shown(case.head)
    if not given:
        return may_be_let_in(case)
    sites = fields(case.head, b"sec-fetch-site")
    is_of_another_page = bool(fields(case.head, b"origin")) or any(
        one not in (b"same-origin", b"none") for one in sites
    )
    named = fields(case.head, b"shoal-principal")
    is_forwarded = bool(named or fields(case.head, b"shoal-forwarded-by"))
    is_agent = case.certificate is not None and case.certificate.is_agent
    if len(given) > 1 or fields(case.head, b"authorization") or is_of_another_page:
        return False
    if (is_forwarded and not is_agent) or len(named) > 1:
        return False
    if any(not 0 < len(one) <= 256 or not one.isascii() for one in named):
        return False
    told = sessions.valid(given[0], NOW_MS)
    return told is not None and may(*told, case.target)
