"""Which ports this agent listens on.

Law of this file: a port that was asked for is taken or refused, never replaced. A default port in use steps
up to the next free one, and the caller says so. Ports of the last run come first: peers and people know them.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

MAX_STEPS = 256  # agents on one host that share the defaults; beyond it something else is wrong
HTTP_BACKLOG = 1_024
TAKEN = (errno.EADDRINUSE, errno.EACCES)

T = TypeVar("T")


class PortError(Exception):
    """No port to listen on. The text is one line: which, and what to do."""


@dataclass(frozen=True, slots=True)
class PortChoice:
    """For one listener: an explicit port, or the kept one, or the default and those above it."""

    flag: str
    explicit: int | None
    kept: int | None
    default: int

    def candidates(self) -> Iterator[int]:
        """The ports to try, in order; 0 lets the kernel choose."""
        if self.explicit is not None:
            yield self.explicit
            return
        if self.kept:
            yield self.kept
        for port in range(self.default, min(self.default + MAX_STEPS, 65_536)):
            if port != self.kept:
                yield port

    def has_stepped(self, port: int) -> bool:
        """Whether people should be told: the port was not asked for, nor is it the expected one."""
        return self.explicit is None and port != (self.kept or self.default)


async def listen(choice: PortChoice, address: str, start: Callable[[int], Awaitable[T]]) -> T:
    """Call `start(port)` with the candidates until one is not in use.

    Raises PortError when none is free or the address does not belong to this host.
    """
    for port in choice.candidates():
        try:
            return await start(port)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise PortError(
                    f"{address} is not an address of this host: give --bind one that is"
                ) from None
            if error.errno not in TAKEN:
                raise PortError(f"cannot listen on {address}:{port}: {error.strerror or error}") from None
            if choice.explicit is not None:
                raise PortError(_explicit_taken(choice, address, port, error)) from None
    raise PortError(
        f"ports {choice.default} to {choice.default + MAX_STEPS - 1} on {address} are all in use: "
        f"give {choice.flag} a free one"
    )


def _explicit_taken(choice: PortChoice, address: str, port: int, error: OSError) -> str:
    if error.errno == errno.EACCES:
        return f"port {port} on {address} needs privileges: give {choice.flag} a port above 1023"
    return f"port {port} on {address} is in use: stop what listens there, or give {choice.flag} another port"


def is_own_address(address: str) -> bool:
    """Whether connections of this host can come from there; not so behind a translation of addresses."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


async def http_socket(address: str, port: int) -> socket.socket:
    """A listening TCP socket; raises OSError. Made before the server, so that the port is known first."""
    family = _family(address)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    listener = socket.create_server((address, port), family=family, backlog=HTTP_BACKLOG, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
