"""Reports of the agents of one command (`--cores`) to its first process, in place of a service manager.

Law of this file: it listens to those processes and to nobody else, and says when all of them listen and
whether each still turns. A service manager knows the first process alone, and hears of the others through it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Self

from shoal.agent.process.service_manager import ServiceManager

MESSAGE_BYTES_MAX = 4_096
MESSAGES_PER_TURN = 64
PARTS_OF_LIMIT = 2 / 3
"""An agent feeds every third of the limit: one feed may be missed. The manager waits a whole limit then."""
_CREDENTIALS = struct.Struct("3i")  # process, user and group of the sender, as the kernel saw it


class CoreReports:
    """A context of the first process; nothing is set up where no manager listens. `on_all_ready` is called
    once."""

    def __init__(
        self,
        manager: ServiceManager,
        count: int,
        on_all_ready: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._count = count
        self._on_all_ready = on_all_ready
        self._now_s = now_s
        self._expected: set[int] = set()
        self._ready: set[int] = set()
        self._fed_s: dict[int, float] = {}
        self._socket: socket.socket | None = None

    @property
    def variables(self) -> Mapping[str, str]:
        """For the environment of an agent: it reports here as it would to a manager."""
        if self._socket is None:
            return {}
        limit_s = self._manager.watchdog_s
        watchdog = {} if limit_s is None else {"WATCHDOG_USEC": str(round(limit_s * 1e6))}
        return {"NOTIFY_SOCKET": f"@{self._socket.getsockname()[1:].decode()}", **watchdog}

    def expect(self, pid: int) -> None:
        """An agent that was started. It says nothing before its code runs."""
        self._expected.add(pid)

    def all_turn(self, alive: Collection[int]) -> bool:
        """Whether each of those processes has said so lately."""
        limit_s = self._manager.watchdog_s
        if limit_s is None:
            return True
        now_s = self._now_s()
        return all(now_s - self._fed_s.get(pid, now_s) <= PARTS_OF_LIMIT * limit_s for pid in alive)

    def __enter__(self) -> Self:
        if self._manager.is_there:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind("")  # an abstract name that the kernel chooses
            asyncio.get_running_loop().add_reader(self._socket, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self) -> None:
        assert self._socket is not None
        for _ in range(MESSAGES_PER_TURN):
            try:
                message, ancillary, _, _ = self._socket.recvmsg(
                    MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    self._take(_CREDENTIALS.unpack(data)[0], message.split(b"\n"))

    def _take(self, pid: int, lines: list[bytes]) -> None:
        if pid not in self._expected:
            return  # any process of this host can send to the name
        if b"READY=1" in lines or b"WATCHDOG=1" in lines:
            self._fed_s[pid] = self._now_s()
        if b"READY=1" in lines and pid not in self._ready:
            self._ready.add(pid)
            if len(self._ready) == self._count:
                self._on_all_ready()
