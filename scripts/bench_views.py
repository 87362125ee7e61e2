"""Sorted views of an agent as they lie on its disk, for benchmarks.

Law of this file: from outside, by the names and sizes of files. An agent tells nobody when it makes a run.
"""

from __future__ import annotations

import pathlib
import time

import bench_topics
import cluster

QUIET_SECONDS = 2.0
"""A view whose files have not changed for so long has nothing to do: reading and sorting what becomes a run,
or the beginning of a merge, takes less."""


def run_files(directory: pathlib.Path) -> dict[str, int]:
    """All runs below a directory, with the bytes of each. A merge may remove one meanwhile."""
    found = {}
    for path in directory.rglob("view/*.arrows"):
        try:
            found[str(path)] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def merges(made: set[str]) -> int:
    """How many merges there were among runs that were seen: a merged run begins where an older one did."""
    begins = [path.rpartition("/")[0] + path.rpartition("/")[2].split("-")[0] for path in made]
    return len(begins) - len(set(begins))


class Watcher:
    """Tells when the views below a directory rest."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._seen = run_files(directory)
        self._since = time.monotonic()
        self.made: set[str] = set(self._seen)
        """Runs that were seen at any time."""
        self.changed_now = False
        """Whether the last look saw other files than the one before."""

    def rests(self) -> bool:
        """Whether nothing has changed for a while."""
        seen = run_files(self._directory)
        self.made |= seen.keys()
        self.changed_now = seen != self._seen
        if self.changed_now:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since >= QUIET_SECONDS


def wait_quiet(directory: pathlib.Path) -> None:
    """Return when the views there rest."""
    watcher = Watcher(directory)
    deadline = time.monotonic() + bench_topics.RUN_TIMEOUT_SECONDS
    while not watcher.rests():
        if time.monotonic() > deadline:
            raise cluster.ClusterProblem(f"the views in {directory} do not come to rest")
        time.sleep(cluster.POLL_SECONDS)
