"""The judge of one key of a table, on histories that were made up."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from linearizability import NEVER, Operation, is_linearizable, register_outcome


def put(value: str, begun: float, ended: float, status: int | None = 200) -> Operation:
    return Operation("put", value, status, begun, ended)


def put_if(
    expected: str | None, value: str, begun: float, ended: float, status: int | None = 200
) -> Operation:
    return Operation("put-if", value, status, begun, ended, expected)


def get(value: str | None, begun: float, ended: float) -> Operation:
    return Operation("get", value, 404 if value is None else 200, begun, ended)


def delete(begun: float, ended: float) -> Operation:
    return Operation("delete", None, 200, begun, ended)


REFUSED = 412
CASES: dict[str, tuple[list[Operation], bool]] = {
    "nothing is there": ([get(None, 0, 1)], True),
    "a value out of nowhere": ([get("a", 0, 1)], False),
    "what was put is there": ([put("a", 0, 1), get("a", 2, 3)], True),
    "what was put is not there": ([put("a", 0, 1), get(None, 2, 3)], False),
    "a get beside a put sees either": ([put("a", 0, 5), get(None, 1, 2), get("a", 3, 4)], True),
    "a get never steps back": ([put("a", 0, 5), get("a", 1, 2), get(None, 3, 4)], False),
    "an old value after a newer one": ([put("a", 0, 1), put("b", 2, 3), get("a", 4, 5)], False),
    "what is deleted is gone": ([put("a", 0, 1), delete(2, 3), get(None, 4, 5)], True),
    "what is deleted is back": ([put("a", 0, 1), delete(2, 3), get("a", 4, 5)], False),
    "a lost answer may count late": ([put("a", 0, NEVER, None), get(None, 1, 2), get("a", 3, 4)], True),
    "a lost answer may never count": ([put("a", 0, NEVER, None), get(None, 3, 4)], True),
    "a lost answer counts once": (
        [put("a", 0, NEVER, None), get("a", 1, 2), delete(3, 4), get("a", 5, 6)],
        False,
    ),
    "one of two who create wins": ([put_if(None, "a", 0, 5), put_if(None, "b", 0, 5, REFUSED)], True),
    "both of two who create win": ([put_if(None, "a", 0, 5), put_if(None, "b", 0, 5)], False),
    "a swap of what is there": ([put("a", 0, 1), put_if("a", "b", 2, 3), get("b", 4, 5)], True),
    "a refusal without a reason": ([put("a", 0, 1), put_if("a", "b", 2, 3, REFUSED)], False),
    "a refusal that rests on a lost put": (
        [put("a", 0, 1), put("b", 0.5, NEVER, None), put_if("a", "c", 2, 3, REFUSED), get("b", 4, 5)],
        True,
    ),
    "a refusal that rests on what is then undone": (
        [put("a", 0, 1), put("b", 0.5, NEVER, None), put_if("a", "c", 2, 3, REFUSED), get("a", 4, 5)],
        False,
    ),
    "a swap of what is not there": ([put("a", 0, 1), put_if("b", "c", 2, 3)], False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_history_of_one_key_is_judged(name: str) -> None:
    """As the case is called."""
    operations, expected = CASES[name]
    assert is_linearizable(operations, outcome=register_outcome) == expected


def test_what_one_client_after_the_other_saw_is_found_in_whatever_order_it_is_told() -> None:
    """Hundreds of operations that overlap a little; and one wrong read among them is noticed."""
    rng, state = random.Random(7), None
    operations: list[Operation] = []
    for number in range(300):
        begun, ended = number - rng.random(), number + rng.random() + 0.1
        kind = rng.choice(("get", "put", "put-if", "delete"))
        value: str | None = f"v{number}" if kind.startswith("put") else state if kind == "get" else None
        expected = rng.choice((state, "other")) if kind == "put-if" else None
        item = Operation(kind, value, None, begun, ended, expected)
        status = next(
            status for status in (200, 404, 412) if register_outcome(state, replace(item, status=status))[0]
        )
        operations.append(replace(item, status=status))
        _, state = register_outcome(state, operations[-1])
    rng.shuffle(operations)
    assert is_linearizable(operations, outcome=register_outcome)
    number = next(at for at, item in enumerate(operations) if item.kind == "get" and item.value is not None)
    operations[number] = replace(operations[number], value="v-never")
    assert not is_linearizable(operations, outcome=register_outcome)


def test_whatever_an_order_of_two_that_overlap_leads_to_is_explained() -> None:
    """A put and a delete at the same time: whatever one order leaves behind is accepted, and nothing else."""
    both = [put("a", 0, 9), delete(0, 9)]
    ends = set()
    for order in itertools.permutations(both):
        state: str | None = "z"
        for item in order:
            _, state = register_outcome(state, item)
        ends.add(state)
    for value in ("a", "z", None):
        seen = [*both, get(value, 10, 11)]
        assert is_linearizable(seen, "z", register_outcome) == (value in ends)
