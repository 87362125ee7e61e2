"""Is there an order of these operations in which each has the outcome that its client saw?

Law of this file: pure. The search of Wing and Gong (1993) with Lowe's memory of visited states (2017), over
one register that may be absent: a topic under one name. An operation whose outcome nobody knows may have
happened at any time after it began, or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEVER = float("inf")


@dataclass(frozen=True)
class Operation:
    """One request and its answer. kind: create, change, delete. value: what was asked for. status: HTTP's,
    None when nobody knows what came of it. Times are of one monotonic clock."""

    kind: str
    value: str | None
    status: int | None
    begun: float
    ended: float


def outcome(state: str | None, operation: Operation) -> tuple[bool, str | None]:
    """Whether the answer fits this state of the topic, and the state afterwards."""
    kind, value, status = operation.kind, operation.value, operation.status
    match kind:
        case "create":
            expected = 201 if state is None else 200 if state == value else 409
            after = value if state is None else state
        case "change":
            expected, after = (404, None) if state is None else (200, value)
        case "delete":
            expected, after = (404, None) if state is None else (204, None)
        case _:
            raise AssertionError(kind)
    return status is None or status == expected, after


def is_linearizable(operations: Sequence[Operation], first: str | None = None) -> bool:
    """Whether one order of all operations, none before it began or after it ended, explains every answer."""
    ordered = sorted(operations, key=lambda item: item.begun)
    must = sum(1 << number for number, item in enumerate(ordered) if item.status is not None)
    seen: set[tuple[int, str | None]] = set()
    stack: list[tuple[int, str | None]] = [(0, first)]
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        waiting = [number for number in range(len(ordered)) if not done >> number & 1]
        soonest = min(_latest(ordered[number]) for number in waiting)
        for number in waiting:
            if ordered[number].begun > soonest:
                break
            fits, after = outcome(state, ordered[number])
            if fits:
                stack.append((done | 1 << number, after))
    return False


def _latest(operation: Operation) -> float:
    return NEVER if operation.status is None else operation.ended
