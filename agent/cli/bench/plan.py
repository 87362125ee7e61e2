"""The plan of a run of `shoal bench`, and how it is told before.

Law of this file: pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

ROUNDS: Final = 5
KEPT_AGE: Final = "1h"
"""The topic of a run that was killed removes its records by itself: a segment is closed at this age, and goes
this long after its last record."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The options of one run. `samples`: single appends, and again as many for a follower; `seconds`:
    after so long producing stops, and each kind of append. `replication_factor` None: the agents' default."""

    topic: str
    partitions: int
    replication_factor: int | None
    records: int
    value_bytes: int
    samples: int
    seconds: float

    @property
    def round_seconds(self) -> float:
        """Its part of one round."""
        return self.seconds / ROUNDS

    def settings(self) -> dict[str, Any]:
        """Of the topic, as the agents take them."""
        ages = {"retention": {"age": KEPT_AGE}, "segment": {"age": KEPT_AGE}}
        wanted: dict[str, Any] = {"partitions": self.partitions, **ages}
        if self.replication_factor is not None:
            wanted["replication_factor"] = self.replication_factor
        return wanted

    def lines(self, asked: Mapping[str, Any]) -> list[str]:
        """The steps to come, as lines. `asked`: the document of the agent."""
        of = f" of cluster {asked['cluster']}" if asked.get("cluster") else ""
        size = f"{self.records * self.value_bytes / 1e6:,.1f} MB"
        return [
            f"a benchmark of agent {asked.get('name') or asked.get('id')}{of}, as clients see it:",
            f"- creates topic {self.topic}, and deletes it again, also after Ctrl-C",
            f"- writes and reads up to {self.records:,} records with values of {self.value_bytes:,} bytes:",
            f"  {size} on the disk of each replica, and a little more",
            f"- appends {self.samples:,} single records one by one, and {self.samples:,} more to a follower",
            f"- stops producing, and each kind of append, after {self.seconds:g} s",
            "Other users of the cluster will notice it.",
        ]
