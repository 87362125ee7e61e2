"""A connection's append that is under way, and the end of it as the broker tells it.

Law of this file: what came and what is answered. Bytes and their order are the front's matter (front.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.agent.http.core.leader import MOVING_CODES
from shoal.agent.http.core.problems import problem_bytes
from shoal.agent.http.fast_row import FastRow
from shoal.agent.http.produce.fast_answer import append_answer
from shoal.agent.http.produce.fast_append import FastRequest
from shoal.agent.interface import Appended
from shoal.agent.metrics.measures import ABORTED
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.agent.http.front import Connection


class PendingAppend:
    """A connection's request on the fast path, and the answer that the broker is given."""

    __slots__ = ("_connection", "_is_over", "began_ns", "head", "memory", "partition", "request")

    def __init__(
        self, connection: Connection, head: bytes, request: FastRequest | FastRow, memory: bytes | memoryview
    ) -> None:
        self._connection = connection
        self._is_over = False
        self.began_ns = 0  # when its body was whole
        self.head = head
        self.request = request
        self.memory = memory
        self.partition = 0  # of a row, once it is known

    def done(self) -> bool:
        """Whether the broker has said how it ended."""
        return self._is_over

    def set_result(self, result: Appended) -> None:
        """Stored."""
        self._is_over = True
        connection, request = self._connection, self.request
        measures = connection.measures
        is_gone = connection.transport is None
        answers = measures.requests[request.operation, ABORTED] if is_gone else request.answered
        measures.appended(answers, time.monotonic_ns() - self.began_ns)
        if isinstance(request, FastRow):
            connection.append_ended(append_answer(self.partition, result, connection.guard, is_row=True))
        else:
            connection.append_ended(append_answer(request.partition or 0, result, connection.guard))

    def set_exception(self, exception: BaseException) -> None:
        """Refused, unknown, or led elsewhere."""
        self._is_over = True
        assert isinstance(exception, ShoalError), exception
        if exception.definite and exception.code in MOVING_CODES:
            self._connection.append_was_moved(self)
        else:
            connection = self._connection
            status = ABORTED if connection.transport is None else exception.status
            connection.measures.answered(self.request.operation, status)
            connection.append_ended(problem_bytes(exception, connection.guard))

    def as_it_came(self, here: int) -> bytes:
        """The request, with so many bytes of its body."""
        lead = self.request.lead_bytes
        return self.head + bytes(self.memory[lead : lead + here])
