"""Replicas here of which the catalog has not taken the birth: which they are, and who waits for news of them.

Law of this file: it remembers and passes on. What a replica does meanwhile is replica.py's business, who is
told births.py's, which births are given up the catalog's.
"""

from collections.abc import Callable
from typing import Protocol

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.opener import Stores, holds_records
from shoal.agent.partition.replica import Replica
from shoal.format.batch import DEFAULT_SCHEMA


class NewbornHost(Protocol):
    """What is asked of the host."""

    def changed(self, group: GroupId) -> None: ...
    async def close_group(self, group: GroupId, why: str) -> None: ...
    async def retire_group(self, group: GroupId) -> None: ...


class Newborns:
    """One per host. replica_of: None for a group of which no replica is open here."""

    def __init__(
        self, host: NewbornHost, stores: Stores, replica_of: Callable[[GroupId], Replica | None]
    ) -> None:
        self._host = host
        self._stores = stores
        self._replica_of = replica_of
        self._noted: dict[GroupId, Replica] = {}
        self.on_led: Callable[[], None] = lambda: None
        """Called when one of them has come to be led here."""

    def note(self, replica: Replica) -> None:
        """It was opened, has another role, or has committed something."""
        if not replica.is_unborn:
            return
        self._noted[replica.group] = replica
        if is_led_here(replica):
            self.on_led()

    def replicas(self) -> list[Replica]:
        """Those that are open, and were not seen to be born."""
        for group, replica in list(self._noted.items()):
            if self._replica_of(group) is not replica or not replica.is_unborn:
                del self._noted[group]
        return list(self._noted.values())

    def be_born(self, group: GroupId) -> None:
        """The catalog has taken the birth that the replica here is of: it serves, if it leads."""
        self._noted.pop(group, None)
        replica = self._replica_of(group)
        if replica is not None:
            replica.awaits_birth = False
            self._host.changed(group)

    async def give_up(self, group: GroupId) -> bool:
        """Remove a replica of a birth that the catalog has given up for another: nobody has led it, so its
        log has no record. One that has is closed, and kept, as whatever cannot be: False then."""
        replica = self._replica_of(group)
        has_records = replica is not None and replica.state.tail.end_offset > 0
        await self._host.close_group(group, "the partition was born again")
        if has_records or await holds_records(self._stores, group, DEFAULT_SCHEMA):
            return False
        await self._host.retire_group(group)
        return True


def is_led_here(replica: Replica) -> bool:
    """Whether it leads with a majority: that has an entry of the group. Who leads from birth alone may be the
    only one of its voters that is there."""
    return replica.is_leader and replica.core.commit_index > 0
