"""A sealed pool in memory, as the key service asks it: members, their keyrings, and who does not answer."""

from __future__ import annotations

from shoal.membership.interface import KeyChange, Member, QueryError
from shoal.membership.serf.keys import KeyReport
from shoal.membership.wire.keyring import Keyring, KeyringError

KEY, OTHER = bytes(32), bytes(range(16))


class FakeKeyedGossip:
    """`rings` None for a member without encryption; the `silent` do not answer; `status` of each member."""

    def __init__(self, *names: str, ring: Keyring | None = None) -> None:
        self.rings: dict[str, Keyring | None] = dict.fromkeys(names, ring or Keyring((KEY,)))
        self.status = dict.fromkeys(names, "alive")
        self.silent: set[str] = set()
        self.busy = False
        self.tells_primaries = True
        self.changes: list[tuple[KeyChange, bytes]] = []

    def members(self) -> tuple[Member, ...]:
        return tuple(
            Member(name, "127.0.0.1", 7946, {"name": f"the-{name}"}, status, 1, 0)
            for name, status in self.status.items()
        )

    def _asked(self) -> KeyReport:
        if self.busy:
            raise QueryError("64 queries are under way")
        names = [name for name, status in self.status.items() if status == "alive"]
        report = KeyReport(len(names))
        report.failures.update(dict.fromkeys(self.silent & set(names), "no answer"))
        return report

    async def keys(self) -> KeyReport:
        report = self._asked()
        for name in self.rings.keys() - self.silent:
            ring = self.rings[name]
            if self.status[name] != "alive":
                continue
            if ring is None:
                report.failures[name] = "Keyring is empty (encryption not enabled)"
                continue
            for key in ring.keys:
                report.keys[key] = report.keys.get(key, 0) + 1
            if self.tells_primaries:
                report.primaries[ring.primary] = report.primaries.get(ring.primary, 0) + 1
        return report

    async def change_keys(self, change: KeyChange, key: bytes) -> KeyReport:
        report = self._asked()
        self.changes.append((change, key))
        for name in self.rings.keys() - self.silent:
            ring = self.rings[name]
            if self.status[name] != "alive" or ring is None:
                continue
            try:
                self.rings[name] = getattr(ring, change.value)(key)
            except KeyringError as error:
                report.failures[name] = str(error)
        return report
