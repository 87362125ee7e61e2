"""The settings of JWTs: whose they are, for whom, and where the issuer's keys stand.

Law of this file: pure. Keys are read elsewhere (agent/issuer/key_source.py).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

TEXT_CHARACTERS_MAX = 512
PORT_MAX = 65_535
SCHEMES = ("http://", "https://")
_URL = re.compile(r"(https?)://([^/?#]*)[^#]*(#.*)?", re.IGNORECASE)
_PLACE = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^:\[\]\s]+)(?::([0-9]{0,5}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """JWTs of one issuer: none are taken without the first three. `jwt_keys`: a path, or a URL."""

    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_keys: str | None = None
    jwt_principal_claim: str = "sub"
    jwt_roles_claim: str | None = None

    @property
    def takes_jwts(self) -> bool:
        return self.jwt_issuer is not None

    def jwt_fault(self, *, is_off: bool = False) -> str | None:
        """The sentence that refuses them, which shows no URL: it could have a password. None for none.
        `is_off`: nobody is asked for credentials, because somebody said so."""
        if is_off and self.takes_jwts:
            return (
                "authentication is off, so no JWT would be looked at: leave out every jwt_ setting, or let"
                " authentication be `on`"
            )
        needed = {
            "jwt_issuer": self.jwt_issuer,
            "jwt_audience": self.jwt_audience,
            "jwt_keys": self.jwt_keys,
        }
        missing = [name for name, value in needed.items() if value is None]
        has_claims = self.jwt_roles_claim is not None or self.jwt_principal_claim != "sub"
        if missing and (has_claims or len(missing) < len(needed)):
            return (
                f"JWTs need an issuer, an audience and keys, and {' and '.join(missing)} is missing: give all"
                " three, or leave out every jwt_ setting"
            )
        claims = {
            "jwt_principal_claim": self.jwt_principal_claim,
            "jwt_roles_claim": self.jwt_roles_claim,
        }
        for name, value in {**needed, **claims}.items():
            if value is not None and not (0 < len(value) <= TEXT_CHARACTERS_MAX and value.isprintable()):
                return f"{name} is not 1 to {TEXT_CHARACTERS_MAX} printable characters"
        return None if self.jwt_keys is None or not is_url(self.jwt_keys) else url_fault(self.jwt_keys)


def is_url(place: str) -> bool:
    """Whether keys are fetched from there; else it is a file's path."""
    return place.lower().startswith(SCHEMES)


def url_fault(url: str) -> str | None:
    """The sentence that refuses it. A password in it is not repeated."""
    parts = _URL.fullmatch(url)
    user, at, place = parts[2].rpartition("@") if parts is not None else ("", "", "")
    found = _PLACE.fullmatch(place)
    if parts is None or found is None or int(found[2] or 0) > PORT_MAX:
        return "jwt_keys is not a URL with a host: give that of the issuer's key set (jwks_uri)"
    if user or at or parts[3]:
        return "jwt_keys has a user, a password or a fragment: key sets are public, leave it out"
    host = found[1].strip("[]").lower()
    try:
        is_this_host = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_this_host = host == "localhost"
    if parts[1].lower() == "http" and not is_this_host:
        return "jwt_keys is fetched in the open, so anybody between could give keys: use https://, or a file"
    return None
