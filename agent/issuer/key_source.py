"""The keys of the issuer of JWTs while an agent runs: read from a file, or fetched from the issuer.

Law of this file: keys that cannot be read change nothing, so those of before are kept through the issuer's
outage. Nobody waits for a fetch: each takes at most FETCH_S and KEY_SET_BYTES_MAX, and follows no redirect.
A token with a key that is not known asks for one, at most once in ASKED_S, however many such tokens come.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from typing import Final, NoReturn

from shoal.agent.log_lines.schema import about
from shoal.agent.process.clock import is_set_within
from shoal.agent.security.jwt import Verifier
from shoal.agent.security.jwt_keys import KEY_SET_BYTES_MAX, KeySetError, keys_from
from shoal.agent.security.jwt_settings import is_url

FILE_LOOK_S: Final = 10.0
URL_LOOK_S: Final = 300.0
"""A key that the issuer has withdrawn counts no longer than this, while the issuer answers."""
RETRY_S: Final = 10.0
"""After a look that failed, where there are no keys at all."""
ASKED_S: Final = 60.0
FETCH_S: Final = 5.0
OK: Final = 200
FAULT_CHARACTERS_MAX: Final = 300

logger = logging.getLogger("shoal.agent")


class KeySourceError(Exception):
    """Keys that cannot be read. One line: why."""


class KeySource:
    """Of one agent. Gives the verifier its keys."""

    def __init__(self, place: str, verifier: Verifier) -> None:
        """`place`: a path, or a URL."""
        self.verifier = verifier
        self._place = place
        self._is_url = is_url(place)
        self._asked = asyncio.Event()
        self._is_looking = self._is_url
        """So it is from the start on: until the first look has ended, unknown keys are being looked for."""
        self._looked_at_s = 0.0
        self._fault = ""
        verifier.ask = self._ask_for_unknown

    async def start(self) -> None:
        """Raises KeySourceError where the keys are a file that cannot be used. An issuer that does not answer
        keeps no agent from starting."""
        if not self._is_url:
            await self._read()

    def ask(self) -> None:
        """Look now: from a signal."""
        self._asked.set()

    def _ask_for_unknown(self) -> bool:
        """Whether a look is under way, or will be in a moment. A file is looked at often enough."""
        if not self._is_url:
            return False
        if self._is_looking or self._asked.is_set():
            return True
        if asyncio.get_running_loop().time() - self._looked_at_s < ASKED_S:
            return False
        self._asked.set()
        return True

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            await self.look()
            if not self._is_url:
                pause_s = FILE_LOOK_S
            else:
                pause_s = RETRY_S if self.verifier.keys is None else URL_LOOK_S
            await is_set_within(self._asked, pause_s)
            self._asked.clear()

    async def look(self) -> None:
        """Take up other keys, or say once why there are none to take."""
        self._is_looking = True
        self._looked_at_s = asyncio.get_running_loop().time()
        try:
            await self._read()
            self._fault = ""
        except KeySourceError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                logger.error(
                    "keys of JWTs not read, %s: %s",
                    "there are none yet" if self.verifier.keys is None else "the former ones stay",
                    error,
                    extra=about("jwt-keys-refused"),
                )
        finally:
            self._is_looking = False

    async def _read(self) -> None:
        """Raises KeySourceError."""
        place = "jwt_keys" if self._is_url else f"jwt_keys {self._place}"
        try:
            if self._is_url:
                document = await fetch(self._place)
            else:
                document = await asyncio.to_thread(read_file, self._place)
            keys = await asyncio.to_thread(keys_from, document)
        except (KeySourceError, KeySetError) as error:
            raise KeySourceError(f"{place}: {error}") from None
        former = self.verifier.keys
        if keys == former:
            return
        self.verifier.use(keys)
        if former is not None:
            logger.info("keys of JWTs exchanged; there are %d", len(keys), extra=about("jwt-keys-exchanged"))


def read_file(path: str) -> bytes:
    """Of a regular file, at most one byte more than a key set may have. A pipe is not waited for. Raises
    KeySourceError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise KeySourceError("it is not a file: give the path of a JWKS")
            return os.read(descriptor, KEY_SET_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KeySourceError(f"it cannot be read: {error.strerror or error}") from None


async def fetch(url: str) -> bytes:
    """The body of the answer, whole. Raises KeySourceError within FETCH_S."""
    import aiohttp

    from shoal.connector import EndingConnector

    try:
        async with (
            aiohttp.ClientSession(
                connector=EndingConnector(),
                timeout=aiohttp.ClientTimeout(total=FETCH_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
            ) as session,
            session.get(
                url,
                allow_redirects=False,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            ) as response,
        ):
            if 300 <= response.status < 400:
                raise KeySourceError(f"status {response.status}, and no redirect is followed: give its end")
            if response.status != OK:
                raise KeySourceError(f"status {response.status}")
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise KeySourceError("the answer is compressed, although that was not asked for")
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > KEY_SET_BYTES_MAX:
                    response.close()
                    raise KeySourceError(f"the answer has over {KEY_SET_BYTES_MAX} bytes")
            return bytes(body)
    except TimeoutError:
        raise KeySourceError(f"no whole answer within {FETCH_S:g} s") from None
    except aiohttp.ClientResponseError:  # its text repeats lines of the answer
        raise KeySourceError("the answer is not HTTP, or has too large a head") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise KeySourceError(text[:FAULT_CHARACTERS_MAX]) from None
