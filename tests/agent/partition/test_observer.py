"""A replica tells its observers what they asked to be told, and calls nothing else."""

from __future__ import annotations

from pathlib import Path

from shoal.agent.host.role_counts import RoleCounts
from shoal.agent.partition.appender import Appender
from shoal.agent.partition.observer import Observers, ReplicaObserver
from shoal.agent.partition.reader import Reader
from shoal.agent.partition.trimmer import Trimmer
from tests.agent.harness import GROUP, Cluster


class Listener(ReplicaObserver):
    """Hears of commits."""

    def __init__(self) -> None:
        self.commits = 0

    def committed(self) -> None:
        self.commits += 1


def test_a_method_that_is_not_overridden_is_not_called() -> None:
    """Two calls of nothing in each turn would be paid for by every record."""
    first, second = Listener(), Listener()
    observers = Observers((first, second))
    for tell in observers.committed:
        tell()
    assert (first.commits, second.commits) == (1, 1)
    assert observers.turn_begins == ()
    assert observers.reads_confirmed == observers.role_changed == ()


async def test_the_observers_of_a_replica_that_serves(tmp_path: Path) -> None:
    """One of them has work in a turn, and only those that wait for commits hear of one."""
    async with Cluster(str(tmp_path), 1) as cluster:
        await cluster.append("a")
        observers = (await cluster.leader()).host.replica(GROUP)._observers

        def told(name: str) -> list[type]:
            return [type(method.__self__) for method in getattr(observers, name)]

        assert told("turn_begins") == [Appender]
        assert told("committed") == [Appender, Reader, Trimmer]
        assert told("reads_confirmed") == [Reader]
        assert told("role_changed") == [Appender, Reader, Trimmer, RoleCounts]
