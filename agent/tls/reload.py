"""The files of TLS while an agent runs: exchanged files count from the next handshake on.

Law of this file: files that do not fit change nothing, and are told of once. They are read again after a
moment first: who exchanges three files writes them one after the other. The parts that use contexts hear of
new ones by `listen`.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from shoal.agent.log_lines.schema import about
from shoal.agent.metrics.measures import Measures
from shoal.agent.process.clock import is_set_within
from shoal.agent.process.errors import StartError
from shoal.agent.tls.contexts import Contexts, TlsError, TlsFiles, make_contexts
from shoal.agent.tls.names import names_host
from shoal.agent.tls_settings import TlsSettings

LOOK_S: Final = 10.0
SECOND_LOOK_S: Final = 1.0
"""From the first look that found files which do not fit to the one that tells of them."""

logger = logging.getLogger("shoal.agent")


async def load_tls(settings: TlsSettings, cluster: str, host: str) -> TlsState | None:
    """None where this agent speaks no TLS. `host`: the name or address by which clients know it. Raises
    StartError."""
    if not settings.is_on:
        return None
    try:
        contexts = await asyncio.to_thread(make_contexts, settings, cluster)
    except TlsError as error:
        raise StartError(str(error)) from None
    state = TlsState(contexts, cluster, host)
    state.check_host()
    return state


class Renewal:
    """Of one exchange. `withdrawn`: an authority that was believed is so no more."""

    def __init__(self, former: Contexts, now: Contexts) -> None:
        self.withdrawn = bool(_authorities(former) - _authorities(now))


class TlsState:
    """The contexts of an agent, as they are now."""

    def __init__(self, contexts: Contexts, cluster: str, host: str) -> None:
        """`host`: as for load_tls()."""
        self.contexts = contexts
        self._cluster, self._host = cluster, host
        self._listeners: list[Callable[[Renewal], None]] = []
        self._asked = asyncio.Event()
        self._fault = ""
        self._is_told = False

    def current(self) -> Contexts:
        """For whoever needs both sides."""
        return self.contexts

    def agents(self) -> ssl.SSLContext:
        """For connections to other agents."""
        return self.contexts.agents

    def check_host(self) -> None:
        """Tell of a certificate that clients refuse. Links of agents do not look at hosts."""
        if not names_host(self.contexts.certificate, self._host):
            logger.warning(
                "tls_cert %s does not name %s, where clients look for this agent: they will refuse it",
                self.contexts.files.settings.tls_cert,
                self._host,
                extra=about("tls-host-unnamed"),
            )

    @property
    def expires(self) -> Mapping[str, float]:
        """Unix time by setting."""
        return self.contexts.expires

    def listen(self, listener: Callable[[Renewal], None]) -> None:
        """Called when there are other contexts."""
        self._listeners.append(listener)

    def ask(self) -> None:
        """Look now: from a signal."""
        self._asked.set()

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            is_suspect = bool(self._fault) and not self._is_told
            await is_set_within(self._asked, SECOND_LOOK_S if is_suspect else LOOK_S)
            self._asked.clear()
            await self.look()

    async def look(self) -> None:
        """Take up files that have changed and fit."""
        former = self.contexts
        try:
            if await asyncio.to_thread(TlsFiles.read, former.files.settings) == former.files:
                self._fault, self._is_told = "", False
                return
            self.contexts = await asyncio.to_thread(make_contexts, former.files.settings, self._cluster)
        except TlsError as error:
            self._note(str(error))
            return
        self._fault, self._is_told = "", False
        until = datetime.datetime.fromtimestamp(self.expires["tls_cert"], datetime.UTC)
        logger.info(
            "certificates exchanged; this agent's is good until %s",
            f"{until:%Y-%m-%d}",
            extra=about("tls-exchanged"),
        )
        self.check_host()
        renewal = Renewal(former, self.contexts)
        for listener in self._listeners:
            listener(renewal)

    def _note(self, fault: str) -> None:
        """The second time in a row it is told, and not again while it stays the same."""
        if fault != self._fault:
            self._fault, self._is_told = fault, False
        elif not self._is_told:
            self._is_told = True
            logger.error(
                "certificates not exchanged, the former ones stay: %s",
                fault,
                extra=about("tls-files-refused"),
            )


def follow(tls: TlsState | None, measures: Measures, renew_links: Callable[[Renewal], None]) -> None:
    """Links, and the numbers of when certificates end, are those of the files as they are now."""
    if tls is None:
        return
    measures.certificates = tls.expires

    def on_renewal(renewal: Renewal) -> None:
        measures.certificates = tls.expires
        renew_links(renewal)

    tls.listen(on_renewal)


def _authorities(contexts: Contexts) -> set[bytes]:
    return set(contexts.server.get_ca_certs(binary_form=True))
