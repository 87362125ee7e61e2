"""Every bound of the HTTP side, by name and with its reason, and the gate that enforces those on the
whole agent.

Knows neither routes nor the broker. Bounds of a single record or batch stand in shoal.batch.
"""

from __future__ import annotations

import dataclasses

from shoal.errors import ShoalError

KIB = 1024
MIB = 1024 * KIB
LARGE_PROMISE_BYTES = MIB
"""Up to here a promise is small beside `bytes_in_flight`: hundreds of them fit."""


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
    # A reader that takes nothing for this long holds megabytes for nothing.
    send_stall_ms: int = 60_000
    # After an error the rest of the body is swallowed this long, so that the client gets to read the answer.
    linger_ms: int = 5_000
    # Appends and reads at work at once; far above what one core can use, far below what memory can hold.
    requests: int = 2_048
    # Bodies and answers held at once.
    bytes_in_flight: int = 256 * MIB
    # Long polls at once: each holds a task and a few KiB.
    waits: int = 16_384
    # JSON and raw bodies (http-api.md).
    body_bytes: int = 8 * MIB
    # Topic settings, member addresses.
    document_bytes: int = 256 * KIB
    # A stream's lines are appended in chunks of this size: about 3 ms of parsing, one slice of the loop.
    chunk_bytes: int = 256 * KIB
    wait_ms: int = 60_000
    timeout_ms: int = 60_000
    default_timeout_ms: int = 5_000
    read_bytes: int = 64 * MIB
    default_read_bytes: int = 1 * MIB
    # Connections to one other agent for forwarded requests; more would only queue at its single core.
    forward_connections: int = 128
    # To all others together, for what waits or is large: a client has one request at a time.
    relay_connections: int = 4_096


def limits_for(open_files: int) -> HttpLimits:
    """The limits of a process that may have so many files open. Segment files take a quarter at most
    (segment_store/shared.py): clients get another, and what is left is for links, and for files in use.
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

    A request holds one place and the bytes of its body or answer; `leave` gives back exactly what `enter` and
    `hold` took.
    """

    __slots__ = ("_limits", "bytes_in_flight", "refused_total", "requests", "waits")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.requests = 0
        self.bytes_in_flight = 0
        self.waits = 0
        self.refused_total = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether `enter` and `hold` would both succeed now, for bytes that are promised and not here yet.

        Large promises leave half of the room to bytes that are here: who promises a lot and sends nothing
        cannot keep others out.
        """
        limits = self._limits
        has_place = self.requests < limits.requests
        room = limits.bytes_in_flight // 2 if size_bytes > LARGE_PROMISE_BYTES else limits.bytes_in_flight
        return has_place and self.bytes_in_flight + size_bytes <= room

    def take(self, size_bytes: int) -> bool:
        """`enter` and `hold` in one; False where either would refuse, and nothing has happened."""
        bytes_in_flight = self.bytes_in_flight + size_bytes
        if size_bytes > LARGE_PROMISE_BYTES:
            if not self.has_room(size_bytes):
                return False
        elif self.requests >= self._limits.requests or bytes_in_flight > self._limits.bytes_in_flight:
            return False
        self.requests += 1
        self.bytes_in_flight = bytes_in_flight
        return True

    def enter(self) -> None:
        """Take a place; ShoalError overloaded when there is none."""
        if self.requests >= self._limits.requests:
            self._refuse(f"{self.requests} requests are being worked on, the most this agent takes")
        self.requests += 1

    def leave(self, held_bytes: int) -> None:
        """Give the place back with the bytes held."""
        self.requests -= 1
        self.bytes_in_flight -= held_bytes
        assert self.requests >= 0, "a place was given back twice"
        assert self.bytes_in_flight >= 0, "more bytes were given back than taken"

    def hold(self, size_bytes: int) -> None:
        """Account for bytes of a request that has a place; ShoalError overloaded when they are too many.

        Negative: bytes that the request no longer needs.
        """
        if size_bytes > 0 and self.bytes_in_flight + size_bytes > self._limits.bytes_in_flight:
            self._refuse(f"{self.bytes_in_flight} bytes are in flight and {size_bytes} more do not fit")
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

    def _refuse(self, detail: str) -> None:
        self.refused_total += 1
        raise ShoalError("overloaded", detail + "; try again in a moment")


class Holding:
    """What one request holds of the gate's bytes, as it grows and shrinks with the chunks of a stream."""

    __slots__ = ("_gate", "size_bytes")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.size_bytes = 0

    def set(self, size_bytes: int) -> None:
        """Hold so many bytes from now on; ShoalError overloaded, and as before, when there is no room."""
        self._gate.hold(size_bytes - self.size_bytes)
        self.size_bytes = size_bytes
