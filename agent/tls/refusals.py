"""Connections that TLS lets in nowhere: all are counted by their kind; each kind and address is told seldom.

Law of this file: pure; time is an argument. A stranger chooses how often it comes and from how many
addresses. So the memory of those that were told is bounded, and beyond it there are numbers only.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, MutableMapping
from enum import StrEnum
from typing import Final, TypeAlias

from shoal.agent.security.access import ANONYMOUS, Proof
from shoal.agent.security.agents_tls import Misnamed
from shoal.agent.security.audit import AuditTrail, Happening

TOLD_AGAIN_MS: Final = 60_000
"""One kind and address is told of once in so long."""
TOLD_MAX: Final = 1_024
"""Kinds and addresses that were told of within that time: so many records of the audit a minute."""


Teller: TypeAlias = Callable[["RefusalKind", str, int], None]
"""Called with a kind, an address and the wall clock's time; it must not wait."""


class RefusalKind(StrEnum):
    """The causes that operators tell apart."""

    NO_TLS = "no-tls"
    """Plain HTTP, or no known language."""
    TIMEOUT = "timeout"
    """A handshake that stopped half way."""
    CROWDED = "crowded"
    """All places were taken, and others waited."""
    CERTIFICATE_EXPIRED = "certificate-expired"
    CERTIFICATE_NOT_YET_VALID = "certificate-not-yet-valid"
    CERTIFICATE_UNKNOWN_AUTHORITY = "certificate-unknown-authority"
    CERTIFICATE_MISNAMED = "certificate-misnamed"
    """It verifies, and its names make nobody."""
    CERTIFICATE_MISSING = "certificate-missing"
    CERTIFICATE_INVALID = "certificate-invalid"
    HANDSHAKE = "handshake"
    """Versions or ciphers that are not shared, an alert of the other side, and the like."""


_BY_CODE: Final = {
    9: RefusalKind.CERTIFICATE_NOT_YET_VALID,
    10: RefusalKind.CERTIFICATE_EXPIRED,
    **dict.fromkeys((18, 19, 20, 21), RefusalKind.CERTIFICATE_UNKNOWN_AUTHORITY),
}
"""By OpenSSL's number of a fault in verification (x509_vfy.h)."""


def kind_of(error: ssl.SSLError) -> RefusalKind:
    """Of a handshake that failed."""
    if isinstance(error, Misnamed):
        return RefusalKind.CERTIFICATE_MISNAMED
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_CODE.get(getattr(error, "verify_code", 0), RefusalKind.CERTIFICATE_INVALID)
    if getattr(error, "reason", None) == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return RefusalKind.CERTIFICATE_MISSING
    return RefusalKind.HANDSHAKE


class Refusals:
    """Of one agent. `counts`: by kind, kept by whoever shows them."""

    def __init__(
        self,
        counts: MutableMapping[str, int] | None = None,
        tell: Teller | None = None,
    ) -> None:
        self.counts = {} if counts is None else counts
        self.counts.update(dict.fromkeys(RefusalKind, 0))
        self._tell = tell
        self._told: dict[
            tuple[RefusalKind, str], int
        ] = {}  # since when; the one told longest ago comes first

    def note(self, kind: RefusalKind, address: str, now_ms: int) -> None:
        """A connection was refused."""
        self.counts[kind] += 1
        if self._tell is not None and self._is_news((kind, address), now_ms):
            self._tell(kind, address, now_ms)

    def _is_news(self, refusal: tuple[RefusalKind, str], now_ms: int) -> bool:
        while self._told:
            oldest = next(iter(self._told))
            if 0 <= now_ms - self._told[oldest] < TOLD_AGAIN_MS:
                break
            del self._told[oldest]
        if refusal in self._told or len(self._told) >= TOLD_MAX:
            return False
        self._told[refusal] = now_ms
        return True


def teller(trail: AuditTrail | None) -> Teller | None:
    """Records of the audit; None where there is none."""
    if trail is None:
        return None

    def tell(kind: RefusalKind, address: str, now_ms: int) -> None:
        trail.refused(Happening(ANONYMOUS, Proof.NONE, address, "handshake", "agent", kind), now_ms)

    return tell
