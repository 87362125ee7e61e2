"""What a member remembers of its pool over a restart: whom it knew, and how far the Lamport clocks had come.

Law of this file: pure; a value and its bytes. The lines are those of Serf's own snapshot (`clock: N`,
`alive: NAME IP:PORT`, ...), so that people who know one can read the other. It is written whole each time and
never appended to, so it needs no compaction; the first line, a comment for Serf, has a checksum of the rest.

The clocks are the last times seen. A member that forgot them would stamp its intents lower than those that
its peers remember of its former life, and take old events for new.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shoal.membership.wire.messages import MAX_NAME_BYTES
from shoal.membership.wire.serf import MAX_LTIME

MAX_PEERS = 256
"""Peers remembered: one that answers tells of all others."""

MAX_SNAPSHOT_BYTES = MAX_PEERS * (MAX_NAME_BYTES + 128) + 1024
"""More than the longest names and addresses can take; a longer file is not ours."""

_MAGIC = "# shoal-snapshot-1"


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
        lines = [f"alive: {peer.name} {_endpoint(peer)}\n" for peer in _storable(self.peers)]
        lines += [
            f"clock: {self.clocks.member}\n",
            f"event-clock: {self.clocks.event}\n",
            f"query-clock: {self.clocks.query}\n",
        ]
        body = "".join(lines).encode()
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
        peers, clocks = [], {"clock": 0, "event-clock": 0, "query-clock": 0}
        for line in lines:
            kind, _, rest = line.partition(": ")
            if kind == "alive":
                peers.append(_peer(rest))
            elif kind in clocks:
                clocks[kind] = _number(rest, MAX_LTIME)
        return cls(tuple(peers[:MAX_PEERS]), Clocks(*clocks.values()))


def _storable(peers: Iterable[Peer]) -> list[Peer]:
    """A name that is longer than names are, or would break its line, is nobody to remember."""
    fit = [peer for peer in peers if len(peer.name.encode()) <= MAX_NAME_BYTES and peer.name.isprintable()]
    return fit[:MAX_PEERS]


def _endpoint(peer: Peer) -> str:
    return f"[{peer.address}]:{peer.port}" if ":" in peer.address else f"{peer.address}:{peer.port}"


def _peer(text: str) -> Peer:
    name, _, endpoint = text.rpartition(" ")
    address, _, port = endpoint.rpartition(":")
    if not name or not address:
        raise SnapshotError(f"no peer: {text[:64]!r}")
    return Peer(name, address.strip("[]"), _number(port, 65_535))


def _number(text: str, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= highest):
        raise SnapshotError(f"no number up to {highest}: {text[:64]!r}")
    return int(text)
