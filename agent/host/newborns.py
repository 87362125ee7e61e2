"""Replicas here of which the catalog has not taken the birth: which they are, and who waits for news of them.

Law of this file: it remembers and passes on. The replica's work meanwhile is replica.py's business. births.py
tells the catalog, and the catalog gives births up.
"""

from collections.abc import Callable

from shoal.agent.durable.ids import GroupId
from shoal.agent.host.open_group import GroupHost
from shoal.agent.partition.opener import Stores, holds_records
from shoal.agent.partition.replica import Replica
from shoal.format.batch import DEFAULT_SCHEMA


class Newborns:
    """One per host."""

    def __init__(self, host: GroupHost, stores: Stores) -> None:
        self._host = host
        self._stores = stores
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
            if self._host.open_replica(group) is not replica or not replica.is_unborn:
                del self._noted[group]
        return list(self._noted.values())

    def be_born(self, group: GroupId) -> None:
        """The catalog has taken the birth that the replica here is of: it serves, if it leads."""
        self._noted.pop(group, None)
        replica = self._host.open_replica(group)
        if replica is not None:
            replica.awaits_birth = False
            self._host.changed(group)

    async def give_up(self, group: GroupId) -> bool:
        """Remove a replica of a birth that the catalog has given up for another: nobody has led it, so its
        log has no record. False: the replica has records or cannot be read, and is closed and kept."""
        replica = self._host.open_replica(group)
        has_records = replica is not None and replica.state.tail.end_offset > 0
        await self._host.close_group(group, "the partition was born again")
        schema = DEFAULT_SCHEMA if replica is None else replica.plan.schema
        if has_records or await holds_records(self._stores, group, schema):
            return False
        await self._host.retire_group(group)
        return True


def is_led_here(replica: Replica) -> bool:
    """Whether it leads with a majority: that has an entry of the group. A replica that leads from birth may
    be the only one of its voters that is there."""
    return replica.is_leader and replica.core.commit_index > 0
