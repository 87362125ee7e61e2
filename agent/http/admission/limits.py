"""Every bound of the HTTP side, by name and with its reason, and the gate that enforces those on the
whole agent.

Knows neither routes nor the broker. Bounds of a single record or batch stand in shoal.format.batch.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from typing import Final

from shoal.errors import ShoalError

KIB = 1024
MIB = 1024 * KIB
HEAD_END: Final = b"\r\n\r\n"
# A head that is remembered, or that decides whose place its connection takes: usual ones are a tenth of it.
HEAD_BYTES_MAX: Final = 4 * KIB
# A head that is read at all before aiohttp: a request line and one header as long as they may be.
WHOLE_HEAD_BYTES_MAX: Final = 16 * KIB
ARRIVING_SHARE = 3, 4
"""How much of `bytes_in_flight` bodies may fill that are not complete: the rest is for what is, and for
answers, however slowly others send."""
HELD_SHARE_WANTED = 8
"""A body that holds memory and is not complete has to bring an eighth of it within `body_stall_ms`; a reader
whose answer holds memory has to take an eighth of that within `send_stall_ms`."""


@dataclasses.dataclass(frozen=True, slots=True)
class HttpLimits:
    """The bounds of one agent's HTTP server. Times in milliseconds, sizes in bytes."""

    # One connection costs about 20 KiB idle; this keeps strangers below 100 MiB.
    connections: int = 4_096
    # Beside those: of other agents, for requests they forward. Eight busy neighbours' (forward_connections).
    agent_connections: int = 1_024
    # Beside those: whose heads are read to see whether they are agents', when the places above are taken.
    unread_connections: int = 64
    # An agent's head comes with its connection; this is a slow network's round trip and more.
    unread_ms: int = 2_000
    # A request line longer than any offset list that a client could need.
    request_line_bytes: int = 8 * KIB - 2
    header_line_bytes: int = 8 * KIB - 2
    header_count: int = 64
    # A connection that has not completed a request's head in this time is closed: slow-loris, and idle.
    idle_ms: int = 75_000
    # A body that brings nothing for this long will bring nothing.
    body_stall_ms: int = 30_000
    # A slower one holds a connection and memory for nothing: a modem of 1995 is three times as fast.
    body_bytes_per_s: int = 1 * KIB
    # Memory set aside for bodies that are not here yet (the allocator has it from the system at once). Beyond
    # it they are received piece by piece: slower, and refused to nobody.
    promised_bytes: int = 128 * MIB
    # A reader that takes nothing for this long holds megabytes for nothing.
    send_stall_ms: int = 60_000
    # One that takes less is no reader: it would hold a connection, and its answer's memory, for days.
    answer_bytes_per_s: int = 1 * KIB
    # After an error the rest of the body is swallowed this long, so that the client gets to read the answer.
    linger_ms: int = 5_000
    # Appends and reads at work at once; far above what one core can use, far below what memory can hold.
    requests: int = 2_048
    # Bodies and answers held at once.
    bytes_in_flight: int = 256 * MIB
    # Of these, what answers may hold until their readers have taken them: slow ones leave room for appends.
    answer_bytes: int = 128 * MIB
    # Long polls at once: each holds a task and a few KiB.
    waits: int = 16_384
    # JSON and raw bodies (docs/http.md).
    body_bytes: int = 8 * MIB
    # Topic settings, member addresses.
    document_bytes: int = 256 * KIB
    # A stream's lines are appended in chunks of this size: about 3 ms of parsing, one slice of the loop.
    chunk_bytes: int = 256 * KIB
    wait_ms: int = 60_000
    timeout_ms: int = 60_000
    # Nothing can be done in none at all: that is a mistake of the request, no fault of the agent.
    least_timeout_ms: int = 1
    default_timeout_ms: int = 5_000
    read_bytes: int = 64 * MIB
    default_read_bytes: int = 1 * MIB
    # Connections to one other agent for forwarded requests; more would only queue at its single core.
    forward_connections: int = 128
    # To all others together, for what waits or is large: a client has one request at a time.
    relay_connections: int = 4_096

    def least_bytes(self, held_bytes: int) -> int:
        """The least bytes that a body brings within `body_stall_ms` while so many of it are held."""
        steady = self.body_bytes_per_s * self.body_stall_ms // 1000
        return max(1, steady, held_bytes // HELD_SHARE_WANTED)

    def least_taken_bytes(self, held_bytes: int) -> int:
        """The least bytes that a reader takes within `send_stall_ms` while its answer holds so many."""
        steady = self.answer_bytes_per_s * self.send_stall_ms // 1000
        return max(1, steady, held_bytes // HELD_SHARE_WANTED)


def limits_for(open_files: int) -> HttpLimits:
    """The limits of a process that may have so many files open. Segment files take a quarter at most
    (segment_store/log/shared.py): clients get another, and what is left is for links, and for files in use.
    """
    usual = HttpLimits()
    return dataclasses.replace(
        usual,
        connections=max(1, min(usual.connections, open_files // 4)),
        relay_connections=max(1, min(usual.relay_connections, open_files // 8)),
        agent_connections=max(1, min(usual.agent_connections, open_files // 16)),
        forward_connections=max(1, min(usual.forward_connections, open_files // 32)),
    )


class Gate:
    """Counts what is in flight and refuses more than the limits: 429, never a queue that grows.

    A request holds one place while it is worked on, and the bytes that are here of its body or answer.
    `leave` gives back exactly what `enter`, `hold` and `arrive` took.
    """

    __slots__ = (
        "_arriving_max", "_limits", "arriving_bytes", "bytes_in_flight", "promised_bytes", "refused_total",
        "requests", "waits",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        share, whole = ARRIVING_SHARE
        self._arriving_max = limits.bytes_in_flight * share // whole
        self.requests = 0
        self.bytes_in_flight = 0
        self.arriving_bytes = 0  # of those: parts of bodies that are not complete
        self.promised_bytes = 0  # memory set aside for what has not come
        self.waits = 0
        self.refused_total = 0

    def take(self, size_bytes: int) -> bool:
        """`enter` and `hold` in one, for a body that is here; False where either would refuse, and nothing
        has happened."""
        bytes_in_flight = self.bytes_in_flight + size_bytes
        if self.requests >= self._limits.requests or bytes_in_flight > self._limits.bytes_in_flight:
            return False
        self.requests += 1
        self.bytes_in_flight = bytes_in_flight
        return True

    def promise(self, size_bytes: int) -> bool:
        """Set memory aside for a body of which nothing is counted yet; False when too much is."""
        promised_bytes = self.promised_bytes + size_bytes
        if promised_bytes > self._limits.promised_bytes:
            return False
        self.promised_bytes = promised_bytes
        return True

    def arrive(self, size_bytes: int) -> bool:
        """So much of a body that is not complete has come; False when there is no room for it."""
        bytes_in_flight = self.bytes_in_flight + size_bytes
        arriving_bytes = self.arriving_bytes + size_bytes
        if arriving_bytes > self._arriving_max or bytes_in_flight > self._limits.bytes_in_flight:
            return False
        self.arriving_bytes = arriving_bytes
        self.bytes_in_flight = bytes_in_flight
        return True

    def give_up(self, promised_bytes: int, arrived_bytes: int) -> None:
        """A body that was not complete is none any more."""
        self.promised_bytes -= promised_bytes
        self.arriving_bytes -= arrived_bytes
        self.bytes_in_flight -= arrived_bytes
        assert self.promised_bytes >= 0, "more was given back than promised"
        assert self.arriving_bytes >= 0, "more was given back than arrived"

    def check_place(self) -> None:
        """ShoalError overloaded when `enter` would refuse now: before a body is read that nobody can use."""
        if self.requests >= self._limits.requests:
            self._refuse(f"{self.requests} requests are being worked on, the most this agent takes")

    def enter(self) -> None:
        """Take a place; ShoalError overloaded when there is none."""
        self.check_place()
        self.requests += 1

    def leave(self, held_bytes: int) -> None:
        """Give the place back with the bytes held."""
        self.requests -= 1
        self.bytes_in_flight -= held_bytes
        assert self.requests >= 0, "a place was given back twice"
        assert self.bytes_in_flight >= 0, "more bytes were given back than taken"

    def place(self) -> AbstractContextManager[None]:
        """A place for as long as the context lasts; ShoalError overloaded when there is none."""
        return _Place(self)

    def hold(self, size_bytes: int) -> None:
        """Account for bytes of a request that has a place; ShoalError overloaded when they are too many.

        Negative: bytes that the request no longer needs.
        """
        if size_bytes > 0 and self.bytes_in_flight + size_bytes > self._limits.bytes_in_flight:
            self.refuse_bytes(size_bytes)
        self.bytes_in_flight += size_bytes
        assert self.bytes_in_flight >= 0, "more bytes were given back than taken"

    def enter_wait(self) -> None:
        """Take a place for a long poll; ShoalError overloaded when there is none."""
        if self.waits >= self._limits.waits:
            self._refuse(f"{self.waits} requests are waiting for news, the most this agent takes")
        self.waits += 1

    def leave_wait(self) -> None:
        """Give a long poll's place back."""
        self.waits -= 1
        assert self.waits >= 0, "a long poll's place was given back twice"

    def refuse_bytes(self, size_bytes: int) -> None:
        """ShoalError overloaded: what `arrive` had no room for."""
        self._refuse(f"{self.bytes_in_flight} bytes are in flight and {size_bytes} more do not fit")

    def _refuse(self, detail: str) -> None:
        self.refused_total += 1
        raise ShoalError("overloaded", detail + "; try again in a moment")


class _Place:
    """One place at the gate."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.enter()

    def __exit__(self, *_: object) -> None:
        self._gate.leave(0)
