"""Finding agents on the same network, or on the same host, without being told: mDNS, service `_shoal._tcp`.

Law of this file: the only one that knows zeroconf. It announces this agent and reports
others; whether to join them is the caller's decision.

Loopback agents speak mDNS on 127.0.0.1 alone. That works on Linux although `lo` does not carry the
MULTICAST flag: a socket that joined the group on 127.0.0.1 and sends with IP_MULTICAST_IF 127.0.0.1
(zeroconf does both when given that interface) is looped back to every socket of the host which joined
there, across processes.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from zeroconf import (
    BadTypeInNameException,
    InterfaceChoice,
    IPVersion,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

logger = logging.getLogger(__name__)

SERVICE_TYPE = "_shoal._tcp.local."

RESOLVE_TIMEOUT_MS = 3_000
"""Wait for a found service's address and TXT record."""

MAX_RESOLVING = 64
"""Services looked up at a time; further ones are met again at their next announcement."""

MAX_HEARD = 1024
"""Agents remembered; a network that announces more is not one to listen to."""

MAX_TEXT_BYTES = 128
"""A cluster name or agent id from the network; longer ones are not ours."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Found:
    """Another agent as it announced itself. Hearsay: nothing of it is authenticated."""

    agent_id: str
    cluster: str
    address: str
    port: int


def decode_announcement(
    properties: dict[bytes, bytes | None], addresses: list[str], port: int | None
) -> Found | None:
    """A service's TXT record, addresses and port; None when it is not a usable announcement of ours."""
    try:
        cluster = (properties.get(b"cluster") or b"").decode()
        agent_id = (properties.get(b"agent") or b"").decode()
    except UnicodeDecodeError:
        return None
    texts_fit = all(0 < len(text.encode()) <= MAX_TEXT_BYTES for text in (cluster, agent_id))
    if not texts_fit or not addresses or not port:
        return None
    return Found(agent_id, cluster, addresses[0], port)


class Discovery:
    """Announces this agent and calls on_found for each other one, again whenever its record changes.

    on_found runs on the event loop and must not block. Foreign clusters are reported
    too: the caller compares names.
    """

    def __init__(
        self,
        *,
        cluster: str,
        agent_id: str,
        address: str,
        gossip_port: int,
        on_found: Callable[[Found], None],
        interfaces: list[str] | InterfaceChoice | None = None,
        announce: bool = True,
    ) -> None:
        self._announce = announce
        self._cluster = cluster
        self._agent_id = agent_id
        self._address = address
        self._port = gossip_port
        self._on_found = on_found
        self._interfaces = interfaces or [LOOPBACK if address.startswith("127.") else address]
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._resolving: set[asyncio.Task[None]] = set()
        self._heard: dict[str, Found] = {}

    @classmethod
    def listener(cls, on_found: Callable[[Found], None]) -> Self:
        """One that announces nobody, on all interfaces: for clients."""
        return cls(
            cluster="",
            agent_id="",
            address=LOOPBACK,
            gossip_port=0,
            on_found=on_found,
            interfaces=InterfaceChoice.All,
            announce=False,
        )

    async def start(self) -> None:
        """Announce and listen. Raises OSError when multicast is not to be had."""
        assert self._zeroconf is None
        self._zeroconf = AsyncZeroconf(interfaces=self._interfaces, ip_version=IPVersion.V4Only)
        try:
            # The name holds a random id, so that nobody else has it: probing for it first would cost 0.5 s.
            if self._announce:
                await self._zeroconf.async_register_service(self._service(), cooperating_responders=True)
            self._browser = AsyncServiceBrowser(
                self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._on_service]
            )
        except BaseException:
            await self.stop()
            raise

    def found(self) -> tuple[Found, ...]:
        """The agents heard and not gone with a goodbye, for another try at joining."""
        return tuple(self._heard.values())

    def _service(self) -> AsyncServiceInfo:
        return AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self._agent_id}.{SERVICE_TYPE}",
            addresses=[socket.inet_aton(self._address)],
            port=self._port,
            properties={"cluster": self._cluster, "agent": self._agent_id},
            server=f"shoal-{self._agent_id}.local.",
        )

    async def stop(self) -> None:
        """Say goodbye and stop listening. Idempotent."""
        if self._zeroconf is None:
            return
        closing, self._zeroconf = self._zeroconf, None
        if self._browser is not None:
            await self._browser.async_cancel()
        for task in list(self._resolving):
            task.cancel()
        await asyncio.gather(*self._resolving, return_exceptions=True)
        await closing.async_close()

    def _on_service(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            self._heard.pop(name, None)
            return
        if name == f"{self._agent_id}.{SERVICE_TYPE}" or len(self._resolving) >= MAX_RESOLVING:
            return
        task = asyncio.get_running_loop().create_task(self._resolve(zeroconf, service_type, name))
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _resolve(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        try:
            info = AsyncServiceInfo(service_type, name)
            if not await info.async_request(zeroconf, RESOLVE_TIMEOUT_MS):
                return
        except BadTypeInNameException as fault:
            logger.debug("ignored the mDNS service %r: %s", name, fault)
            return
        found = decode_announcement(info.properties, info.parsed_addresses(IPVersion.V4Only), info.port)
        if found is None or found.agent_id == self._agent_id or self._heard.get(name) == found:
            return
        if name not in self._heard and len(self._heard) >= MAX_HEARD:
            return
        self._heard[name] = found
        self._on_found(found)
