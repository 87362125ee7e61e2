"""The network between simulated hosts: datagrams that may be lost, streams that stay in order or break.

Law of this file: it behaves as the kernel's TCP and UDP do and knows nothing of what they carry. A cut path
loses datagrams and holds streams; a killed process closes its streams, a host without power says nothing; a
stream whose path was cut for long may be found reset.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster_sim.loop import LIFE, Life, SimLoop

SEND_BUFFER_BYTES = 256 * 1_024
"""What the kernels of both ends take before bytes wait in the sender's own memory."""
HIGH_WATER_BYTES = 64 * 1_024
DATAGRAMS_MAX = 256
"""Of one socket's receive buffer."""
SYN_RETRY_S = 1.0
RETRANSMIT_S = 0.2
"""How soon after a cut is healed the held segments come through, at most."""

Address = tuple[str, int]


@dataclass
class Conditions:
    """How the network is now; chances from 0 to 1, times in ms."""

    delay_ms_max: float = 1.0
    loss: float = 0.0
    duplication: float = 0.0
    straggler: float = 0.0
    straggler_ms_max: float = 500.0
    split: float = 0.0
    """Of what was written at once: it arrives in two parts."""
    reset_after_cut: float = 0.3


class SimSocket:
    """A listening or a not yet connected TCP socket."""

    family = socket.AF_INET

    def __init__(self, network: Network, life: Life, port: int, target: Address | None = None) -> None:
        self.network = network
        self.life = life
        self.port = port
        self.target = target
        self.factory: Callable[[], Any] | None = None
        self.context: contextvars.Context | None = None

    def getsockname(self) -> Address:
        return self.life.address, self.port

    def clear_reader(self) -> bool:
        """Nobody is accepted any more."""
        self.close()
        return True

    def close(self) -> None:
        self.factory = None
        if self.network.listeners.get(self.getsockname()) is self:
            del self.network.listeners[self.getsockname()]


class SimServer(asyncio.AbstractServer):
    """What create_server returns."""

    def __init__(self, listener: SimSocket) -> None:
        self._listener = listener
        self.sockets = [listener]

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        return None

    def is_serving(self) -> bool:
        return self._listener.factory is not None


class SimDatagrams:
    """A non-blocking UDP socket."""

    def __init__(self, network: Network, life: Life, port: int) -> None:
        self._network = network
        self.life = life
        self.address = (life.address, port)
        self._received: deque[tuple[bytes, Address]] = deque()
        self._reader: tuple[Any, Any, contextvars.Context] | None = None
        self._told = False

    def set_reader(self, callback: Any, args: Any, context: contextvars.Context) -> None:
        self._reader = (callback, args, context)

    def clear_reader(self) -> bool:
        was, self._reader = self._reader, None
        return was is not None

    def deliver(self, data: bytes, source: Address) -> None:
        if self.life.is_dead or len(self._received) >= DATAGRAMS_MAX:
            return
        self._received.append((data, source))
        if self._told or self._reader is None or self.life.is_paused:
            self._tell()
        else:
            self._reader[2].run(self._read)

    def _tell(self) -> None:
        if self._reader is not None and not self._told:
            self._told = True
            self._network.loop.call_soon(self._read, context=self._reader[2])

    def _read(self) -> None:
        self._told = False
        if self._reader is None or not self._received:
            return
        callback, args, _ = self._reader
        callback(*args)
        if self._received:
            self._tell()

    def recvfrom(self, _bytes_max: int) -> tuple[bytes, Address]:
        if not self._received:
            raise BlockingIOError
        return self._received.popleft()

    def sendto(self, data: bytes, target: Address) -> None:
        self._network.send_datagram(self, bytes(data), target)

    def close(self) -> None:
        self._reader = None
        if self._network.datagrams.get(self.address) is self:
            del self._network.datagrams[self.address]


class SimTransport(asyncio.Transport):
    """One end of a stream."""

    def __init__(self, network: Network, life: Life, context: contextvars.Context, own: Address) -> None:
        super().__init__({"sockname": own, "socket": None, "sslcontext": None})
        self._network = network
        self.life = life
        self._context = context
        self.peer: SimTransport | None = None
        self._protocol: Any = None
        self._fills_buffers = False
        self._segment: bytearray | None = None
        self._segment_at = 0.0
        self._in_flight: deque[bytearray | str] = deque()
        self._sent_at: deque[float] = deque()
        """When each of them left: many are under way at once, and none waits for the one before to arrive."""
        self._in_flight_bytes = 0
        self._lagging: deque[bytearray | str] = deque()
        """On a path that is late: behind it they arrive as they were sent, with the times between them."""
        self._lags_until = 0.0
        self._arrives_at = 0.0
        self._pump: asyncio.Handle | None = None
        self._inbox: deque[bytes | str] = deque()
        self._reading = True
        self._waking = False
        self._closing = False
        self._lost = False
        self._paused_writer = False

    # ---- asyncio's side --------------------------------------------------------------------------

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        self._fills_buffers = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._wake()

    def get_write_buffer_size(self) -> int:
        waiting = self._in_flight_bytes - SEND_BUFFER_BYTES
        return waiting if waiting > 0 else 0  # noqa: FURB136 -- a fifth of the time of max()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return HIGH_WATER_BYTES // 4, HIGH_WATER_BYTES

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._send("eof")

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: Any) -> None:
        if self.life.is_dead or self._lost or self._closing or not data:
            return
        now = self._network.loop._now
        if self._network.lags or self._lagging:
            self._send(bytearray(data))
        elif self._segment is not None and self._segment_at == now:
            self._segment += data
        else:
            self._segment, self._segment_at = bytearray(data), now
            self._in_flight.append(self._segment)
            self._sent_at.append(now)
            if self._pump is None:
                self._pump_later()
        self._in_flight_bytes += len(data)
        if self._in_flight_bytes > SEND_BUFFER_BYTES + HIGH_WATER_BYTES and not self._paused_writer:
            self._paused_writer = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if self._closing or self.life.is_dead:
            return
        self._closing = True
        self._send("eof")
        if not self.get_write_buffer_size():
            self._later(self._lose, None)

    def abort(self) -> None:
        if self._lost or self.life.is_dead:
            return
        self._closing = True
        self._send("reset")
        self._later(self._lose, None)

    def _later(self, callback: Any, *args: Any) -> None:
        self._network.loop.call_soon(callback, *args, context=self._context)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._network.streams.discard(self)
        self._protocol.connection_lost(error)

    # ---- the network's side ----------------------------------------------------------------------

    def _send(self, what: bytearray | str) -> None:
        network = self._network
        lag_s = network.lag_s(self.life.address, self.peer.life.address) if self.peer is not None else 0.0
        if not lag_s and not self._lagging:
            self._in_flight.append(what)
            self._sent_at.append(network.loop._now)
            self._pump_later()
            return
        self._segment = None  # nothing more joins what left before
        self._lagging.append(what)
        self._lags_until = max(self._lags_until, network.loop._now + lag_s)
        network.loop.call_at(self._lags_until, self._has_lagged, context=network.context)

    def _has_lagged(self) -> None:
        if self._lagging:
            self._in_flight.append(self._lagging.popleft())
            self._sent_at.append(self._network.loop._now)
            self._pump_later()

    def _pump_later(self) -> None:
        """Bytes of one direction arrive in the order in which they left."""
        if self._pump is not None or not self._in_flight:
            return
        network = self._network
        arrives_at = self._sent_at[0] + network.delay_s()
        if arrives_at > self._arrives_at:
            self._arrives_at = arrives_at
        self._pump = network.loop.call_at(self._arrives_at, self._arrive, context=network.context)

    def _arrive(self) -> None:
        self._pump = None
        peer = self.peer
        assert peer is not None
        if not self._in_flight:
            return  # it was reset meanwhile
        network = self._network
        if network.cuts and not network.is_open(self.life.address, peer.life.address):
            network.wait_for_heal(self)
            return
        if peer.life.is_dead:
            self._meet_the_dead(peer)
            return
        what = self._in_flight.popleft()
        self._sent_at.popleft()
        if isinstance(what, bytearray):
            if network.conditions.split:
                what = self._part_of(what)
            if what is self._segment:
                self._segment = None
            self._in_flight_bytes -= len(what)
            if self._paused_writer or self._closing:
                self._drained()
            self._pump_later()
            peer.take(bytes(what))
        else:
            self._pump_later()
            peer.receive(what)

    def _part_of(self, what: bytearray) -> bytearray:
        """All of it, or by chance what comes first; the rest leaves again now."""
        chance = self._network.rng.random
        if len(what) < 2 or chance() >= self._network.conditions.split:
            return what
        size = 1 + int(chance() * (len(what) - 1))
        rest = what[size:]
        if what is self._segment:
            self._segment = rest
        self._in_flight.appendleft(rest)
        self._sent_at.appendleft(self._network.loop._now)
        return what[:size]

    def take(self, data: bytes) -> None:
        """Bytes have come; a process that waits for them gets them at once, as code of its own."""
        if self._inbox or not self._reading or self._closing or self.life.is_paused or self._protocol is None:
            self.receive(data)
        elif not self.life.is_dead and not self._lost:
            self._context.run(self._hand_in, data)

    def _hand_in(self, data: bytes) -> None:
        """To the protocol, in its own memory if it wants that; what does not fit there is read next time."""
        if not self._fills_buffers:
            self._protocol.data_received(data)
            return
        room = memoryview(self._protocol.get_buffer(-1))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        if size < len(data):
            self._inbox.appendleft(data[size:])
            self._wake()
        self._protocol.buffer_updated(size)

    def _drained(self) -> None:
        """Some of what was written has left."""
        if self._paused_writer and self.get_write_buffer_size() < HIGH_WATER_BYTES // 4:
            self._paused_writer = False
            if not self.life.is_dead:
                self._later(self._protocol.resume_writing)
        if self._closing and not self._lost and not self.get_write_buffer_size():
            self._later(self._lose, None)

    def _meet_the_dead(self, peer: SimTransport) -> None:
        """A host that is up answers for a process that is gone; one without power does not."""
        if peer.life.address in self._network.powerless:
            self._network.wait_for_heal(self)
        else:
            self.break_off()

    def break_off(self) -> None:
        """A reset has come from the other side's kernel."""
        self._in_flight.clear()
        self._sent_at.clear()
        self._lagging.clear()
        self._in_flight_bytes = 0
        if not self.life.is_dead and not self._lost:
            self.receive("reset")

    def path_is_open(self) -> None:
        """The path is there again; the segment that waits is sent once more."""
        self._pump_later()

    def receive(self, what: bytes | str) -> None:
        if self.life.is_dead or self._lost:
            return
        self._inbox.append(what)
        self._wake()

    def _wake(self) -> None:
        if self._inbox and not self._waking:
            self._waking = True
            self._later(self._read)

    def _read(self) -> None:
        self._waking = False
        while self._inbox and (self._reading or self._inbox[0] == "reset") and not self._lost:
            what = self._inbox.popleft()
            if what == "reset":
                self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
            elif what == "eof":
                if not self._protocol.eof_received():
                    self.close()
            elif not self._closing:
                self._hand_in(what)


class Network:
    """All hosts, and the paths between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.conditions = Conditions()
        self.context = contextvars.Context()
        self.loop: SimLoop
        self.listeners: dict[Address, SimSocket] = {}
        self.datagrams: dict[Address, SimDatagrams] = {}
        self.streams: dict_set = dict_set()
        self.powerless: set[str] = set()
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing goes that way."""
        self.lags: dict[tuple[str, str], float] = {}
        """(from, to): how late everything is that goes that way, in seconds."""
        self._held: list[SimTransport] = []
        self._ports = 40_000
        self.sent = self.lost = 0

    # ---- paths -----------------------------------------------------------------------------------

    def is_open(self, source: str, target: str) -> bool:
        return (source, target) not in self.cuts

    def lag_s(self, source: str, target: str) -> float:
        return self.lags.get((source, target), 0.0)

    def delay_s(self) -> float:
        conditions, chance = self.conditions, self.rng.random
        if conditions.straggler and chance() < conditions.straggler:
            return chance() * conditions.straggler_ms_max / 1_000
        return (0.05 + chance() * (conditions.delay_ms_max - 0.05)) / 1_000

    def wait_for_heal(self, stream: SimTransport) -> None:
        self._held.append(stream)

    def look_at_held(self) -> None:
        """After cuts or power have changed: held segments are sent again, or the stream is found broken."""
        held, self._held = self._held, []
        for stream in held:
            assert stream.peer is not None
            delay_s = self.rng.uniform(0, RETRANSMIT_S)
            is_open = self.is_open(stream.life.address, stream.peer.life.address)
            if is_open and self.rng.random() < self.conditions.reset_after_cut:
                self.loop.call_later(delay_s, self._reset_both, stream, context=self.context)
            elif is_open:
                self.loop.call_later(delay_s, stream.path_is_open, context=self.context)
            else:
                self._held.append(stream)

    def _reset_both(self, stream: SimTransport) -> None:
        assert stream.peer is not None
        stream.break_off()
        stream.peer.break_off()

    def process_ended(self, life: Life, *, power: bool) -> None:
        """Its sockets are closed by the kernel, or gone with it."""
        for listener in [item for item in self.listeners.values() if item.life is life]:
            listener.close()
        for udp in [item for item in self.datagrams.values() if item.life is life]:
            udp.close()
        if power:
            self.powerless.add(life.address)
        for stream in [item for item in self.streams if item.life is life]:
            self.streams.discard(stream)
            if not power and stream.peer is not None and not stream.peer.life.is_dead:
                delay_s = self.delay_s()
                self.loop.call_later(delay_s, self._tell_of_death, stream, context=self.context)

    def _tell_of_death(self, stream: SimTransport) -> None:
        assert stream.peer is not None
        if self.is_open(stream.life.address, stream.peer.life.address):
            stream.peer.break_off()  # otherwise it learns when it next sends something

    # ---- datagrams -------------------------------------------------------------------------------

    def send_datagram(self, sender: SimDatagrams, data: bytes, target: Address) -> None:
        source = sender.life.address
        if sender.life.is_dead:
            return
        self.sent += 1
        if not self.is_open(source, target[0]) or self.rng.random() < self.conditions.loss:
            self.lost += 1
            return
        copies = 2 if self.rng.random() < self.conditions.duplication else 1
        for _ in range(copies):
            delay_s = self.delay_s() + self.lag_s(source, target[0])
            self.loop.call_later(delay_s, self._deliver, data, sender.address, target, context=self.context)

    def _deliver(self, data: bytes, source: Address, target: Address) -> None:
        receiver = self.datagrams.get(target)
        if receiver is not None and self.is_open(source[0], target[0]):
            receiver.deliver(data, source)

    # ---- sockets ---------------------------------------------------------------------------------

    def _life(self) -> Life:
        life = LIFE.get()
        assert life is not None, "sockets belong to processes"
        return life

    def listen(self, port: int) -> SimSocket:
        """As bind and listen do. Raises OSError."""
        life = self._life()
        if (life.address, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "address in use")
        listener = self.listeners[life.address, port] = SimSocket(self, life, port)
        return listener

    def open_datagrams(self, port: int) -> SimDatagrams:
        life = self._life()
        udp = self.datagrams[life.address, port] = SimDatagrams(self, life, port)
        return udp

    def serve(self, listener: SimSocket, factory: Callable[[], Any]) -> SimServer:
        listener.factory = factory
        listener.context = contextvars.copy_context()
        return SimServer(listener)

    def unconnected(self, target: Address) -> SimSocket:
        return SimSocket(self, self._life(), 0, target)

    async def connect(self, factory: Callable[[], Any], target: Address) -> tuple[Any, Any]:
        """Raises ConnectionRefusedError; waits while the path is cut, for ever if need be."""
        life = self._life()
        while True:
            await asyncio.sleep(2 * self.delay_s())
            both_ways = self.is_open(life.address, target[0]) and self.is_open(target[0], life.address)
            if both_ways and target[0] not in self.powerless:
                break
            await asyncio.sleep(SYN_RETRY_S)
        listener = self.listeners.get((target[0], int(target[1])))
        if listener is None or listener.factory is None or listener.life.is_dead:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connection to {target} refused")
        self._ports += 1
        own = (life.address, self._ports)
        near = SimTransport(self, life, contextvars.copy_context(), own)
        assert listener.context is not None
        far = SimTransport(self, listener.life, listener.context.copy(), listener.getsockname())
        near._extra["peername"], far._extra["peername"] = listener.getsockname(), own
        near.peer, far.peer = far, near
        self.streams.add(near)
        self.streams.add(far)
        protocol = factory()
        near.set_protocol(protocol)
        self.loop.call_soon(self._accept, listener, far, context=listener.context.copy())
        protocol.connection_made(near)
        return near, protocol

    def _accept(self, listener: SimSocket, far: SimTransport) -> None:
        if listener.factory is None:
            far._protocol = asyncio.Protocol()
            far.abort()
            return
        protocol = listener.factory()
        far.set_protocol(protocol)
        protocol.connection_made(far)
        far._wake()


class dict_set(dict[Any, None]):  # noqa: N801 -- a set that remembers its order
    """Iterates in the order of insertion, whatever the addresses of its members."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)
