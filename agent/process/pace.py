"""A few at a time through each round of the event loop, however many were let go at once.

Law of this file: it knows none of its callers. Tasks that share a sync go on in one instant; a thousand that
work for a millisecond each would hold the loop for a second.
"""

import asyncio
from collections import deque

MAX_PER_ROUND = 16


class Pace:
    """Use from one event loop."""

    def __init__(self, per_round: int = MAX_PER_ROUND) -> None:
        self._per_round = per_round
        self._room = per_round
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._planned = False

    async def pass_one(self) -> None:
        """Return in a round in which there is room, in the order of the calls."""
        self._plan()
        if self._room and not self._waiting:
            self._room -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._planned = False
        self._room = self._per_round
        while self._waiting and self._room:
            turn = self._waiting.popleft()
            if not turn.done():  # else the caller was cancelled meanwhile
                self._room -= 1
                turn.set_result(None)
        if self._waiting or self._room < self._per_round:
            self._plan()
