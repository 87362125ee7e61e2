"""The figures of `shoal bench`: medians, percentiles, and how they are told.

Law of this file: pure. Latencies are in seconds and told in milliseconds; sizes are those of the values
alone, and a megabyte has 10^6 bytes.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Final

UNKNOWN: Final = "-"


@dataclass(slots=True)
class Latencies:
    """Seconds of single operations, one after the other."""

    samples_s: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def p99_s(self) -> float:
        """Of 100 operations 99 were at least so quick; of fewer than 100 the slowest."""
        ranked = sorted(self.samples_s)
        return ranked[math.ceil(0.99 * len(ranked)) - 1]

    def document(self) -> dict[str, Any]:
        """For programs, in milliseconds."""
        return {
            "median_ms": round(self.median_s * 1_000, 4),
            "p99_ms": round(self.p99_s * 1_000, 4),
            "samples": len(self.samples_s),
        }


@dataclass(slots=True)
class Throughput:
    """Records and seconds of each round."""

    value_bytes: int
    rounds: list[tuple[int, float]] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Records a second, by round."""
        return [records / seconds for records, seconds in self.rounds]

    @property
    def bytes_per_second(self) -> float:
        """Bytes of values a second, the median of the rounds."""
        return statistics.median(self.rates) * self.value_bytes

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "records_per_second": round(statistics.median(self.rates)),
            "slowest_records_per_second": round(min(self.rates)),
            "value_bytes_per_second": round(self.bytes_per_second),
            "records": sum(records for records, _ in self.rounds),
            "rounds": len(self.rounds),
        }


@dataclass(slots=True)
class BenchFigures:
    """All that one run measured. `copies`: bytes a second through a bare socket, by round."""

    produce: Throughput
    consume: Throughput
    append: Latencies = field(default_factory=Latencies)
    arrival: Latencies = field(default_factory=Latencies)
    round_trip: Latencies = field(default_factory=Latencies)
    handshake: Latencies = field(default_factory=Latencies)
    copies: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "append": self.append.document(),
            "end_to_end": self.arrival.document(),
            "produce": self.produce.document(),
            "consume": self.consume.document(),
            "floor": {
                "socket_round_trip": self.round_trip.document(),
                "handshake_with_agent": self.handshake.document(),
                "socket_copy_bytes_per_second": round(statistics.median(self.copies)),
            },
        }

    def latency_rows(self) -> list[list[str]]:
        """Name, median, p99, and how many times the bare socket's median."""
        floor_s = self.round_trip.median_s
        return [
            [name, milliseconds(one.median_s), milliseconds(one.p99_s), times(one.median_s / floor_s)]
            for name, one in (
                ("append, acks=all", self.append),
                ("append to follower", self.arrival),
                ("TCP handshake with agent", self.handshake),
                ("bare socket, there and back", self.round_trip),
            )
        ]

    def throughput_rows(self) -> list[list[str]]:
        """Name, records a second in the median and in the slowest round, megabytes, share of the copy."""
        copy = statistics.median(self.copies)
        rows = [
            [
                name,
                f"{statistics.median(one.rates):,.0f}",
                f"{min(one.rates):,.0f}",
                megabytes(one.bytes_per_second),
                f"{one.bytes_per_second / copy:.2%}",
            ]
            for name, one in (("produce, acks=all", self.produce), ("consume", self.consume))
        ]
        return [*rows, ["bare socket, one way", UNKNOWN, UNKNOWN, megabytes(copy), "100%"]]


def milliseconds(seconds: float) -> str:
    """With three digits that mean something: `0.0412 ms`, `3.41 ms`, `128 ms`."""
    value = seconds * 1_000
    decimals = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{min(decimals, 4)}f} ms"


def megabytes(bytes_per_second: float) -> str:
    """`82.0 MB/s`."""
    value = bytes_per_second / 1e6
    return f"{value:,.0f} MB/s" if value >= 100 else f"{value:.3g} MB/s"


def times(ratio: float) -> str:
    """`29 x`, and one decimal below ten."""
    return f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.1f} x"
