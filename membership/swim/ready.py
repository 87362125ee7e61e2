"""What the cores ask of the world, and what the world tells them: frozen values only.

Law of this file: data between the pure cores and their driver: the asyncio shell, a
simulation, a script.
"""

from enum import Enum
from typing import NamedTuple

from shoal.membership.wire.messages import Endpoint, Message, PushPull, State


class Datagram(NamedTuple):
    """Messages of one packet that came in from `source`."""

    source: Endpoint
    messages: tuple[Message, ...]


class Exchanged(NamedTuple):
    """A push/pull has brought a peer's state, as requester or as responder. `joined`: it was our own join."""

    state: PushPull
    joined: bool = False


class StreamProbed(NamedTuple):
    """The outcome of a StreamProbe."""

    sequence: int
    reached: bool


class KeyringKept(NamedTuple):
    """The keyring of a Ready will outlive this process, or why it will not."""

    fault: str = ""


Input = Datagram | Exchanged | StreamProbed | KeyringKept


class OutgoingPacket(NamedTuple):
    """One UDP packet: encoded messages, to be framed together."""

    receiver: Endpoint
    parts: tuple[bytes, ...]
    checksum: bool


class StreamProbe(NamedTuple):
    """Ping the node over TCP and report StreamProbed; a node reachable that way alone is alive."""

    sequence: int
    node: str
    endpoint: Endpoint
    timeout_ms: int


class Exchange(NamedTuple):
    """Open a stream, send local_state(join), read the peer's and report it as Exchanged."""

    endpoint: Endpoint
    join: bool


class ChangeKind(Enum):
    """What happened to a node on SWIM's level."""

    JOIN = "join"
    LEAVE = "leave"
    UPDATE = "update"
    SUSPECT = "suspect"
    REFUTED = "refuted"
    CONFLICT = "conflict"


class Change(NamedTuple):
    """One change of one node, with what was true of it right then."""

    kind: ChangeKind
    name: str
    endpoint: Endpoint
    meta: bytes
    vsn: bytes
    incarnation: int
    state: State
    answered: bool = False


class SwimReady(NamedTuple):
    """What SwimCore wants done and has to say, in the order in which it happened."""

    packets: tuple[OutgoingPacket, ...]
    stream_probes: tuple[StreamProbe, ...]
    exchanges: tuple[Exchange, ...]
    changes: tuple[Change, ...]
    user_messages: tuple[bytes, ...]
