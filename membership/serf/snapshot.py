"""What a member remembers of its pool over a restart: whom it knew, and how far the Lamport clocks had come.

Law of this file: pure; a value and its bytes. The lines are those of Serf's own snapshot (`clock: N`,
`alive: NAME IP:PORT`, ...), so that people who know one can read the other. It is written whole each time and
never appended to, so it needs no compaction; the first line, a comment for Serf, has a checksum of the rest.

The clocks are the last times seen. A member that forgot them would stamp its intents lower than those that
its peers remember of its former life, and take old events for new.
"""

import zlib
from dataclasses import dataclass
from typing import NamedTuple

from shoal.membership.wire.messages import MAX_NAME_BYTES, host_and_port
from shoal.membership.wire.serf import MAX_LTIME

MAX_PEERS = 256
"""Peers remembered: one that answers tells of all others."""

MAX_SNAPSHOT_BYTES = MAX_PEERS * (MAX_NAME_BYTES + 128) + 1024
"""More than the longest names and addresses can take; a longer file is not ours."""

_MAGIC = "# shoal-snapshot-1"
_CLOCKS = ("clock", "event-clock", "query-clock")


class SnapshotError(ValueError):
    """The bytes are no snapshot, or not all of one."""


class Peer(NamedTuple):
    """A member, and where it was seen last."""

    name: str
    address: str
    port: int


class Clocks(NamedTuple):
    """The last Lamport times seen of intents, user events and queries; 0 for none."""

    member: int = 0
    event: int = 0
    query: int = 0


NO_CLOCKS = Clocks()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`peers`: the most useful first; those beyond MAX_PEERS are forgotten."""

    peers: tuple[Peer, ...] = ()
    clocks: Clocks = NO_CLOCKS

    def to_bytes(self) -> bytes:
        # A name that is longer than names are, or would break its line, is nobody to remember.
        fit = [
            one for one in self.peers if len(one.name.encode()) <= MAX_NAME_BYTES and one.name.isprintable()
        ]
        lines = [f"alive: {name} {host_and_port(address, port)}" for name, address, port in fit[:MAX_PEERS]]
        lines += [f"{kind}: {last}" for kind, last in zip(_CLOCKS, self.clocks, strict=True)]
        body = "".join(f"{line}\n" for line in lines).encode()
        return f"{_MAGIC} {zlib.crc32(body):08x}\n".encode() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> "Snapshot":
        """Raises SnapshotError, and nothing else."""
        first, _, body = data.partition(b"\n")
        if len(data) > MAX_SNAPSHOT_BYTES or first != f"{_MAGIC} {zlib.crc32(body):08x}".encode():
            raise SnapshotError("its checksum does not match")
        try:
            lines = body.decode().splitlines()
        except UnicodeDecodeError:
            raise SnapshotError("it is not text") from None
        peers, clocks = [], dict.fromkeys(_CLOCKS, 0)
        for line in lines:
            kind, _, rest = line.partition(": ")
            if kind == "alive":
                name, _, endpoint = rest.rpartition(" ")
                address, _, port = endpoint.rpartition(":")
                if not name or not address:
                    raise SnapshotError(f"no peer: {rest[:64]!r}")
                peers.append(Peer(name, address.strip("[]"), _number(port, 65_535)))
            elif kind in clocks:
                clocks[kind] = _number(rest, MAX_LTIME)
        return cls(tuple(peers[:MAX_PEERS]), Clocks(*clocks.values()))


def _number(text: str, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= highest):
        raise SnapshotError(f"no number up to {highest}: {text[:64]!r}")
    return int(text)
