"""Which entries of one log are being copied from here, and so must stay: pure (safety 15, 27).

A copy that asks for nothing more for PIN_MS is given up. Its receiver has died or copies from another agent
now, and a head that stays for ever would fill the disk.

The source of copies writes these leases, the trimmer and the rebalancer read them. The replica carries them,
so that they end with it, and has no other part in them.
"""

from shoal.format.batch import LogIndex
from shoal.replication.interfaces import ReplicaId

PIN_MS = 30_000
"""Long against an election and a slow disk, short against the ages that retention counts."""


class CopyLeases:
    """Per replica. Receivers are bounded by the group's configurations."""

    def __init__(self) -> None:
        self._wanted: dict[ReplicaId, tuple[LogIndex, int]] = {}
        """What each asked for last, and until when it is waited for."""

    def asked(self, receiver: ReplicaId, index: LogIndex, now_ms: int) -> None:
        """The receiver wants the entry; it has what it asked for before."""
        self._wanted[receiver] = (index, now_ms + PIN_MS)

    def done(self, receiver: ReplicaId) -> None:
        self._wanted.pop(receiver, None)

    def pinned_index(self, now_ms: int) -> LogIndex | None:
        """The first entry that must stay; None when nothing must."""
        if not self._wanted:
            return None
        self._wanted = {key: value for key, value in self._wanted.items() if value[1] > now_ms}
        return min((index for index, _ in self._wanted.values()), default=None)

    def reached_index(self, receiver: ReplicaId) -> LogIndex:
        """How far its copy has come; 0 when it makes none."""
        return self._wanted.get(receiver, (LogIndex(0), 0))[0]
