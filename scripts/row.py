"""One line of a table of benchmarks."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table. `goal` is what the ratio has to reach; None where there is no bar yet."""

    name: str
    measured: str
    floor: str
    ratio: float
    goal: float | None
    lower_is_better: bool = False

    def verdict(self) -> str:
        if self.goal is None:
            return ""
        good = self.ratio <= self.goal if self.lower_is_better else self.ratio >= self.goal
        return "reached" if good else "MISSED"
