"""Refusals of TLS: every one is counted, and a flood of them is told of in bounded memory."""

from __future__ import annotations

import json
import ssl

import pytest

from shoal.agent.security.agents_tls import Misnamed
from shoal.agent.security.audit import AuditTrail
from shoal.agent.tls.refusals import TOLD_AGAIN_MS, TOLD_MAX, RefusalKind, Refusals, kind_of, teller


def test_each_kind_and_address_is_told_once_a_minute() -> None:
    """And counted each time; a clock that has gone back holds nothing back."""
    told: list[tuple[RefusalKind, str]] = []
    refusals = Refusals(tell=lambda kind, address, _: told.append((kind, address)))
    for now_ms in (0, 1, TOLD_AGAIN_MS - 1):
        refusals.note(RefusalKind.NO_TLS, "10.0.0.1", now_ms)
    refusals.note(RefusalKind.NO_TLS, "10.0.0.2", 5)
    refusals.note(RefusalKind.TIMEOUT, "10.0.0.1", 6)
    first = [
        (RefusalKind.NO_TLS, "10.0.0.1"),
        (RefusalKind.NO_TLS, "10.0.0.2"),
        (RefusalKind.TIMEOUT, "10.0.0.1"),
    ]
    assert told == first
    refusals.note(RefusalKind.NO_TLS, "10.0.0.1", TOLD_AGAIN_MS + 6)
    refusals.note(RefusalKind.NO_TLS, "10.0.0.1", 3)
    assert told == first + [first[0]] * 2
    assert refusals.counts[RefusalKind.NO_TLS] == 6
    assert refusals.counts[RefusalKind.TIMEOUT] == 1
    assert sum(refusals.counts.values()) == 7


def test_a_flood_of_addresses_is_counted() -> None:
    """Beyond so many a minute nobody is told."""
    told: list[str] = []
    refusals = Refusals(tell=lambda _, address, __: told.append(address))
    for number in range(3 * TOLD_MAX):
        refusals.note(RefusalKind.HANDSHAKE, str(number), 0)
    assert len(told) == TOLD_MAX
    refusals.note(RefusalKind.HANDSHAKE, "late", TOLD_AGAIN_MS)
    assert told[-1] == "late"
    assert refusals.counts[RefusalKind.HANDSHAKE] == 3 * TOLD_MAX + 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (9, RefusalKind.CERTIFICATE_NOT_YET_VALID),
        (10, RefusalKind.CERTIFICATE_EXPIRED),
        (18, RefusalKind.CERTIFICATE_UNKNOWN_AUTHORITY),
        (20, RefusalKind.CERTIFICATE_UNKNOWN_AUTHORITY),
        (26, RefusalKind.CERTIFICATE_INVALID),
    ],
)
def test_kinds_of_certificates(code: int, kind: RefusalKind) -> None:
    """By OpenSSL's number."""
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code = code
    assert kind_of(error) is kind
    assert kind_of(Misnamed("x")) is RefusalKind.CERTIFICATE_MISNAMED
    assert kind_of(ssl.SSLError(1, "x")) is RefusalKind.HANDSHAKE


def test_the_audit_hears_of_them() -> None:
    """As a refusal of nobody in particular; an agent that asks for no credentials has no audit."""
    trail = AuditTrail("herring")
    Refusals(tell=teller(trail)).note(RefusalKind.CERTIFICATE_EXPIRED, "10.0.0.7", 1_800_000_000_000)
    (text,) = trail.take(1_800_000_000_000, 10)
    record = json.loads(text)
    assert (record["kind"], record["operation"], record["outcome"]) == (
        "refusal",
        "handshake",
        "certificate-expired",
    )
    assert (record["principal"], record["address"]) == ("anonymous", "10.0.0.7")
    assert teller(None) is None
