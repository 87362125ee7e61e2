"""Is there an order of these operations in which each has the outcome that its client saw?

Law of this file: pure. The search of Wing and Gong (1993) with Lowe's memory of visited states (2017), over
one register that may be absent: a topic under one name, a key of a table. An operation whose outcome nobody
knows may have happened at any time after it began, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

NEVER = float("inf")


@dataclass(frozen=True)
class Operation:
    """One request and its answer. kind: see `outcome`, `register_outcome`. value: what was asked for or read.
    status: HTTP's, None when nobody knows what came of it. expected: what a conditional one wants to find,
    None for nothing. Times are of one monotonic clock."""

    kind: str
    value: str | None
    status: int | None
    begun: float
    ended: float
    expected: str | None = None


Answered = Callable[[str | None, Operation], tuple[bool, str | None]]
"""Whether an answer fits a state, and the state afterwards."""


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


def register_outcome(state: str | None, operation: Operation) -> tuple[bool, str | None]:
    """Whether the answer fits this value of a key, and the value afterwards. Every value that is written is
    another one. kind: get, put, put-if, delete, delete-if; the conditional ones are refused by 412."""
    kind, value, status = operation.kind, operation.value, operation.status
    if kind == "get":
        return status is None or (status, value) == (404 if state is None else 200, state), state
    name, _, condition = kind.partition("-")
    assert name in {"put", "delete"}, kind
    assert condition in {"", "if"}, kind
    if condition and state != operation.expected:
        return status in {None, 412}, state
    return status in {None, 200}, value if name == "put" else None


def is_linearizable(
    operations: Sequence[Operation], first: str | None = None, outcome: Answered = outcome
) -> bool:
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
