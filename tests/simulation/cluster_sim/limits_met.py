"""Which bounds on memory and connections the agents of a run have met, and how often.

Law of this file: it counts refusals where the product makes them. A bound that nobody meets is not tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from shoal.agent.http.admission.answer_room import AnswerRoom
from shoal.agent.http.admission.limits import Gate
from shoal.agent.http.admission.places import Places
from shoal.agent.partition.state.idempotence import ProducerTable

LIMITS = frozenset(("connections", "requests", "bytes arriving", "bytes promised", "bytes held", "producers"))
"""Those that a hundred seeds meet."""


def counted(met: Counter[str]) -> list[tuple[Any, str, Any]]:
    """Replacements that count in `met`, and change nothing."""
    check_place, hold = Gate.check_place, Gate.hold

    def observed_check_place(self: Gate) -> None:
        met["requests"] += self.requests >= self._limits.requests
        check_place(self)

    def observed_hold(self: Gate, size_bytes: int) -> None:
        met["bytes held"] += size_bytes > 0 and _is_full(self, size_bytes)
        hold(self, size_bytes)

    take = Gate.take

    def observed_take(self: Gate, size_bytes: int) -> bool:
        met["requests"] += self.requests >= self._limits.requests
        met["bytes held"] += _is_full(self, size_bytes)
        return take(self, size_bytes)

    def when(name: str, method: Callable[..., Any], refusal: object) -> Callable[..., Any]:
        def observed(*arguments: Any, **named: Any) -> Any:
            answer = method(*arguments, **named)
            met[name] += answer is refusal
            return answer

        return observed

    return [
        (Gate, "check_place", observed_check_place),
        (Gate, "hold", observed_hold),
        (Gate, "take", observed_take),
        (Gate, "arrive", when("bytes arriving", Gate.arrive, False)),
        (Gate, "promise", when("bytes promised", Gate.promise, False)),
        (AnswerRoom, "_fits", when("bytes of answers", AnswerRoom._fits, False)),
        (Places, "enter", when("connections", Places.enter, None)),
        (Places, "settle", when("connections", Places.settle, False)),
        (ProducerTable, "_has_room", when("producers", ProducerTable._has_room, False)),
    ]


def _is_full(gate: Gate, size_bytes: int) -> bool:
    return gate.bytes_in_flight + size_bytes > gate._limits.bytes_in_flight


def to_text(met: Counter[str]) -> str:
    """As `from_text` reads it."""
    return ", ".join(f"{name} {count}" for name, count in sorted(met.items()) if count) or "none"


def from_text(text: str) -> Counter[str]:
    """The inverse of to_text."""
    items = [] if text == "none" else [item.rpartition(" ") for item in text.split(", ")]
    return Counter({name: int(count) for name, _, count in items})
