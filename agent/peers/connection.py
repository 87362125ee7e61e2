"""One connection between two agents: upgrade, greeting, frames.

Law of this file: it owns one transport, and tells the links `opened`, `frame` and `lost`, in that order.
Dialling, sending and the meaning of silence are links.py's business. Before both greetings are checked no
frame is given out and none may be longer than a greeting (safety 24).
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.peers.frames import (
    FRAME_HEAD,
    MAX_PAYLOAD_BYTES,
    MAX_REASON_BYTES,
    PROTOCOL,
    FrameReader,
    FrameType,
    Hello,
    LinkKind,
    PeerWireError,
    Piece,
    RawFrame,
    decode_refusal,
    encode_refusal,
    frame_head,
)
from shoal.agent.peers.terms import BEFORE_TERMS, HEADER, terms_in_head

if TYPE_CHECKING:
    from shoal.agent.peers.links import Links

MAX_UPGRADE_BYTES = 4_096
"""The answer to an upgrade is a status line and a few headers."""
OUTBOX_BYTES = {LinkKind.CONTROL: 4 * 2**20, LinkKind.BULK: 32 * 2**20}
"""What may wait to be sent; beyond it frames are dropped and Raft repeats them. A second of a slow disk
network."""
LEAVE_S = 5.0
"""A connection that another one has replaced is still read for so long: the other side may have sent on it
before it knew. A full outbox takes two seconds of a slow network."""
JOINED_BYTES = 16 * 2**10
"""So short a frame is copied into one piece: that is quicker than any list of them."""

seldom = once_a_minute(logging.getLogger(__name__))


class Refused(Exception):
    """The peer, or this agent, does not want the connection: the text says why."""


class PeerConnection(asyncio.Protocol):
    """`dialled`: the kind and the peer's id where this side opened the connection, None where it accepted."""

    def __init__(self, owner: "Links", dialled: tuple[LinkKind, str, str] | None) -> None:
        loop = asyncio.get_running_loop()
        self._owner = owner
        self._dialled = dialled
        self.was_dialled = dialled is not None
        """This side opened it."""
        self.context: ssl.SSLContext | None = None
        """By which this side opens it; None in the open."""
        self._reader = FrameReader(MAX_REASON_BYTES)
        self._transport: asyncio.Transport | None = None
        self._upgrade: bytearray | None = bytearray() if dialled is not None else None
        self.opened: asyncio.Future[None] = loop.create_future()
        """Done when open, or refused with the reason; never done on a connection lost while greeting."""
        self.closed = asyncio.Event()
        self.kind = LinkKind.CONTROL
        self.terms = BEFORE_TERMS
        """Of the other side."""
        self.peer_id = ""
        self.boot_nonce = b""
        self.address: str | None = None
        """Where the other end is, as its packets say."""
        self.is_open = False
        self._unfinished_bytes = 0
        self._has_greeted = False
        self.closing = False
        """This side ended it: not the peer's silence."""

    def take_address(self, transport: asyncio.BaseTransport) -> None:
        """Note where the other end is."""
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.take_address(transport)
        self._transport = cast("asyncio.Transport", transport)
        if self._dialled is not None:
            _, _, host = self._dialled
            headers = f"Host: {host}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
            terms = f"{HEADER}: {self._owner.terms().to_text()}\r\n"
            self._transport.write(f"GET /v1/peer HTTP/1.1\r\n{headers}{terms}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        owner = self._owner
        with owner.around_input:
            try:
                if self.is_open and (frame := self._reader.only(data)) is not None:
                    owner.frame(self, frame)
                else:
                    self._take(data)
            except PeerWireError as error:
                name = agent_name(self.peer_id) if self.peer_id else self.address
                seldom.warning("closing the link to %s: %s", name, error)
                self.refuse(str(error))
            except Refused as error:
                self.refuse(str(error))

    def _take(self, data: bytes) -> None:
        if self._upgrade is not None:
            data = self._take_upgrade(data)
        self._reader.feed(data)
        while not self.closing and (frame := self._reader.take()) is not None:
            self._take_frame(frame)
        self._hold_unfinished(0 if self.closing else self._reader.unfinished_bytes)

    def _hold_unfinished(self, size_bytes: int) -> None:
        difference_bytes = size_bytes - self._unfinished_bytes
        if difference_bytes:
            self._unfinished_bytes = size_bytes
            self._owner.hold_unfinished(difference_bytes)

    def _take_upgrade(self, data: bytes) -> bytes:
        assert self._upgrade is not None
        self._upgrade += data
        end = self._upgrade.find(b"\r\n\r\n")
        if end < 0:
            if len(self._upgrade) > MAX_UPGRADE_BYTES:
                raise PeerWireError("the answer to the upgrade has no end")
            return b""
        head = bytes(self._upgrade[:end])
        status = head.split(b"\r\n", 1)[0]
        rest = bytes(self._upgrade[end + 4 :])
        if status.split(b" ")[:2] != [b"HTTP/1.1", b"101"]:
            # Not a byte more, since it still speaks HTTP; and no fault: it may be starting, or leaving.
            raise Refused(f"no upgrade but {status[:80].decode(errors='replace')!r}")
        self._upgrade = None
        assert self._dialled is not None
        kind, peer_id, _ = self._dialled
        self.terms = terms_in_head(head)
        self._send_hello(kind, peer_id)
        return rest

    def _send_hello(self, kind: LinkKind, peer_id: str) -> None:
        hello = self._owner.greeting(kind, peer_id)
        self._say(FrameType.HELLO, hello.to_bytes(self._owner.agreed_version(self.terms)))

    def _say(self, frame_type: FrameType, payload: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame_head(frame_type, len(payload)) + payload)

    def _take_frame(self, frame: RawFrame) -> None:
        if self.is_open:
            self._owner.frame(self, frame)
        elif self._has_greeted:
            raise PeerWireError(f"frame type {frame.type} before the greeting was answered")
        elif frame.type == FrameType.HELLO:
            self._has_greeted = True
            self.greet(Hello.from_bytes(frame.payload, self._owner.agreed_version(self.terms)))
        elif frame.type == FrameType.REFUSED:
            self._end(Refused(decode_refusal(frame.payload)))
        else:
            raise PeerWireError(f"frame type {frame.type} before the greeting")

    def greet(self, hello: Hello) -> None:
        """Take the other side's greeting; again, where its owner had to wait with it. Never raises: an agent
        that is not wanted is told. A connection that was lost meanwhile stays as it is: its owner may hear of
        that later than of the member."""
        if self._transport is None:
            return
        try:
            self._greet(hello)
        except Refused as error:
            self.refuse(str(error))

    def _greet(self, hello: Hello) -> None:
        if self._dialled is not None and (hello.kind, hello.agent_id) != self._dialled[:2]:
            raise Refused(f"expected {agent_name(self._dialled[1])}, met {agent_name(hello.agent_id)}")
        if not self._owner.check(hello, self):
            return
        self.kind, self.peer_id, self.boot_nonce = hello.kind, hello.agent_id, hello.boot_nonce
        if self._dialled is None:
            self._send_hello(hello.kind, hello.agent_id)
        self._reader.limit(MAX_PAYLOAD_BYTES[self.kind])
        self.is_open = True
        if not self.opened.done():
            self.opened.set_result(None)
        self._owner.opened(self, hello)

    def send(self, frame_type: int, pieces: Sequence[Piece]) -> bool:
        """False when the outbox is full or the connection not open: the frame is dropped, whole."""
        transport = self._transport
        if not self.is_open or transport is None:
            return False
        size = sum(map(len, pieces))
        # Asked each time: from Python 3.12 on writelines tells no protocol that it holds more than it should.
        waiting = transport.get_write_buffer_size()
        if waiting and waiting + size > OUTBOX_BYTES[self.kind]:
            return False
        if size <= JOINED_BYTES:
            transport.write(b"".join((FRAME_HEAD.pack(size, frame_type), *pieces)))
        elif transport.is_closing():
            # asyncio's writelines from Python 3.12 on asks to be told when a broken connection can be written
            # to. The next connection with its descriptor is then deaf, or raises where it is written to.
            return False
        else:
            # No empty pieces: that writelines never takes one off its buffer, and the transport could then
            # neither rest nor close.
            transport.writelines([frame_head(frame_type, size), *(piece for piece in pieces if piece)])
        traffic = self._owner.traffic[self.kind]
        traffic.sent_frames += 1
        traffic.sent_bytes += FRAME_HEAD.size + size
        return True

    def refuse(self, reason: str) -> None:
        """Say why, and close."""
        if self._transport is not None and self._upgrade is None and not self.is_open:
            self._say(FrameType.REFUSED, encode_refusal(reason))
        self._end(Refused(reason))

    def leave(self) -> None:
        """Another one has replaced it: nothing is sent on it any more, and it ends in a while."""
        asyncio.get_running_loop().call_later(LEAVE_S, self.close)

    def close(self) -> None:
        """End it from this side."""
        self._end(Refused("closed"))

    def _end(self, reason: Refused) -> None:
        self.closing = True
        if not self.opened.done():
            self.opened.set_exception(reason)
            self.opened.exception()  # retrieved: a waiting task still sees it, and none is no bug
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it at once, unsent bytes and all."""
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        was_open, self.is_open = self.is_open, False
        if not self.opened.done():
            self.opened.set_exception(Refused(f"lost while greeting: {exc or 'closed by the peer'}"))
            self.opened.exception()
        self.closed.set()
        self._transport = None
        self._hold_unfinished(0)
        if was_open:
            self._owner.lost(self)
