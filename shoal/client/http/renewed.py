"""A request whose token was exchanged while it was under way, as with a wait of a minute.

Law of this file: one repetition, and only with another token than the refused one. It reads no file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from shoal.client.http.routes import Failure

UNAUTHENTICATED = "unauthenticated"


class Signed(Protocol):
    """A request with its credentials."""

    @property
    def headers(self) -> object: ...


Request = TypeVar("Request", bound=Signed)
Answer = TypeVar("Answer")


async def with_the_newest_token(
    signed: Callable[[], Request], ask: Callable[[Request], Awaitable[Answer]]
) -> Answer:
    """The answer. A token that is refused is told at once, unless its file has another one by now."""
    request = signed()
    try:
        return await ask(request)
    except Failure as refused:
        again = signed()
        if refused.code != UNAUTHENTICATED or again.headers == request.headers:
            raise
    return await ask(again)
