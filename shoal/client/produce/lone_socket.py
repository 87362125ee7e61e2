"""Lone records over sockets of their own, from the caller's thread: no event loop, no other thread.

Law of this file: it moves bytes, for one caller at a time (the lone record's owner). A failure of any
kind is no answer, and the ordinary way asks again; `lone.doubt` says whether anything was sent.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from shoal.client.http.wire import BrokenAnswer, UnknownLength, WholeAnswer, whole_answer
from shoal.client.produce.accumulator import LoneRecord
from shoal.client.produce.lone_record import ANSWER_SECONDS

AGENTS_MAX: Final = 16
"""Connections kept, one an agent; with more leaders than these a connection is made anew now and then."""
IDLE_SECONDS_MAX: Final = 10.0
"""A connection that was idle for longer may just be closed by its agent, or by something on the way."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_READ_BYTES: Final = 64 << 10


class LoneSockets:
    """A producer's connections for lone records."""

    def __init__(
        self,
        connect_timeout_seconds: float,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """`tls`: the context for agents at https URLs."""
        self._connect_timeout_seconds = connect_timeout_seconds
        self._context = tls
        self._kept: dict[str, tuple[socket.socket, float]] = {}
        """With the time when each was last used."""
        self._busy = False
        self._closed = False

    def exchange(self, lone: LoneRecord) -> WholeAnswer | None:
        """Send it, wait for the answer; None if there is none."""
        self._busy = True
        try:
            connected = None if self._closed else self._connection(lone.url)
            if connected is None:
                return None
            lone.doubt = True
            answer = _ask(connected, lone.request)
            if answer is None or not answer.keeps_open:
                self._drop(lone.url)
            return answer
        except BaseException:
            self._drop(lone.url)  # nobody would read the answer that may still come
            raise
        finally:
            self._busy = False
            if self._closed:
                self._drop_all()

    def close(self) -> None:
        """End all connections, from any thread; a caller that waits for an answer gets none."""
        self._closed = True
        for connected, _ in list(self._kept.values()):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # of TLS another thread makes use now
        if not self._busy:
            self._drop_all()

    def after_fork(self) -> None:
        """In the child: its copies are closed, the parent's connections go on."""
        self._closed = True
        self._drop_all()

    def _connection(self, url: str) -> socket.socket | None:
        now = time.monotonic()
        kept = self._kept.get(url)
        if kept is not None and now - kept[1] < IDLE_SECONDS_MAX:
            self._kept[url] = (kept[0], now)
            return kept[0]
        self._drop(url)
        if len(self._kept) >= AGENTS_MAX:
            self._drop(next(iter(self._kept)))
        try:
            connected = self._connected(url)
        except OSError:  # an SSLError, too
            return None
        self._kept[url] = (connected, now)
        if sys.platform == "win32" or isinstance(connected, ssl.SSLSocket):
            connected.settimeout(ANSWER_SECONDS)
            return connected
        # The kernel's own timeouts: with Python's each call is two.
        connected.settimeout(None)
        timeout = struct.pack("ll", 0, int(ANSWER_SECONDS * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, timeout)
        return connected

    def _connected(self, url: str) -> socket.socket:
        """A new one. Raises OSError."""
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        address = (parts.hostname or "", parts.port or (443 if is_tls else 80))
        connected = socket.create_connection(address, self._connect_timeout_seconds)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_tls:
                connected = self._context().wrap_socket(connected, server_hostname=parts.hostname)
        except BaseException:
            connected.close()
            raise
        return connected

    def _drop(self, url: str) -> None:
        kept = self._kept.pop(url, None)
        if kept is not None:
            kept[0].close()

    def _drop_all(self) -> None:
        for url in list(self._kept):
            self._drop(url)


def _ask(connected: socket.socket, request: bytes) -> WholeAnswer | None:
    try:
        connected.sendall(request)
        data = connected.recv(_READ_BYTES)
        answer = whole_answer(data, _ANSWER_BYTES_MAX)
        while answer is None:
            more = connected.recv(_READ_BYTES)
            if not more:
                return None
            data += more
            answer = whole_answer(data, _ANSWER_BYTES_MAX)
    except (OSError, BrokenAnswer, UnknownLength):  # a BlockingIOError: the kernel's timeout
        return None
    return answer
