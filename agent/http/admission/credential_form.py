"""The form of a header `Authorization`, before anybody reads it.

Law of this file: characters. The judge says whose a credential is, and whether it counts.
"""

from __future__ import annotations

from typing import Final

from shoal.errors import ShoalError

AUTHORIZATION_CHARACTERS_MAX: Final = 4_096
"""Of the header: a token has 75, a JWT of a generous issuer 2,000."""


def check_form(authorization: str) -> None:
    """Raises ShoalError unauthenticated for a header that is no credential."""
    if len(authorization) > AUTHORIZATION_CHARACTERS_MAX:
        raise ShoalError(
            "unauthenticated", f"the Authorization header has over {AUTHORIZATION_CHARACTERS_MAX} characters"
        )
    if not authorization.isascii() or not authorization.isprintable():
        raise ShoalError("unauthenticated", "the Authorization header has characters that no credential has")
