"""What a fault of the cluster's simulation strikes, and what it leaves alone."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from cluster_sim.faults import Nemesis
from cluster_sim.knobs import Knobs

STRIKES = 50


class Disk:
    """Files by their paths; `damaged`: (path, position, bits)."""

    def __init__(self, **files: bytes) -> None:
        self._files = {f"/data/topics/{name}/0/view/1.arrows": content for name, content in files.items()}
        self.damaged: list[tuple[str, int, int]] = []

    def segments(self) -> list[str]:
        """All of them."""
        return sorted(self._files)

    def content(self, path: str) -> bytes:
        """Whole."""
        return self._files[path]

    def damage(self, path: str, position: int, bits: int) -> None:
        """Flip them."""
        self.damaged.append((path, position, bits))


def nemesis(disk: Disk) -> Nemesis:
    """Of a cluster with one agent."""
    node = SimpleNamespace(name="n0", address="10.0.0.1", disk=disk)
    simulation: Any = SimpleNamespace(rng=random.Random(1), nodes=[node], knobs=Knobs.of_seed(0))
    return Nemesis(simulation)


def test_a_run_rots_where_it_has_bytes() -> None:
    """A file that was just made has none yet: another one is struck, or nobody."""
    disk = Disk(made=b"", written=b"run")
    struck = nemesis(disk)
    for _ in range(STRIKES):
        assert struck.rot_run().startswith("n0 /data/topics/written/")
    assert {position for _, position, _ in disk.damaged} == {0, 1, 2}
    assert {bits.bit_count() for _, _, bits in disk.damaged} == {1}
    spared = nemesis(Disk(made=b""))
    assert (spared.rot_run(), spared.rotten) == ("nowhere", None)
