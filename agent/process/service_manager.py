"""Messages to systemd: the agent is ready, reloads or stops, and its event loop still turns (sd_notify(3)).

Law of this file: datagrams to the socket that the environment names, and nothing where it names none. A
service manager that does not listen keeps no agent from working.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
FEEDS_PER_LIMIT = 3
"""Two may come late before the limit is reached."""
STATUS_CHARACTERS_MAX = 256

seldom = once_a_minute(logging.getLogger("shoal.agent"))


class ServiceManager:
    """One per process, used from its event loop; a context that ends the feeding of the watchdog."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s(environment, pid)
        """Silence after which the manager ends this process; None where it does not watch."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = False
        self._is_well: Callable[[], bool] = _always

    @property
    def is_there(self) -> bool:
        """Whether the environment names one."""
        return bool(self._address)

    def tell(self, *lines: str) -> None:
        """As `READY=1`. A line feed in a text would be another message."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        message = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message.encode(errors="backslashreplace"), address)
        except OSError as error:
            seldom.warning(
                "cannot tell the service manager at %s: %s",
                self._address,
                error.strerror or error,
                extra=about("service-manager-silent"),
            )

    def ready(self, status: str, is_well: Callable[[], bool] | None = None) -> None:
        """The agent listens. From now on the manager hears regularly that the loop turns, as long as
        `is_well` says so of what it stands for."""
        self._is_ready = True
        self._is_well = is_well or _always
        self.tell("READY=1", _status(status))
        self._stop_feeding()
        self._feed()

    def status(self, text: str) -> None:
        """For `systemctl status`."""
        self.tell(_status(text))

    def stopping(self) -> None:
        """Asked for or not."""
        self._is_ready = False
        self.tell("STOPPING=1")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """The configuration is read again meanwhile. The manager compares the time with that of its request,
        by the machine's monotonic clock. Nothing is told of an agent that starts or stops: READY=1 would say
        that it is past that."""
        if self._is_ready:
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
            self.tell("RELOADING=1", f"MONOTONIC_USEC={now_us}")
        try:
            yield
        finally:
            if self._is_ready:
                self.tell("READY=1")

    def _feed(self) -> None:
        """A callback of the loop itself: a loop that hangs feeds nobody."""
        if self.watchdog_s is None:
            return
        if self._timer is not None and self._is_well():
            self.tell("WATCHDOG=1")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.watchdog_s / FEEDS_PER_LIMIT, self._feed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_feeding()

    def _stop_feeding(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _always() -> bool:
    return True


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    """The limit; None where nobody watches this process."""
    limit, watched = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not limit.isdecimal() or not int(limit) or (watched and watched != str(pid)):
        return None
    return int(limit) / 1e6


def _status(text: str) -> str:
    return f"STATUS={text[:STATUS_CHARACTERS_MAX]}"
