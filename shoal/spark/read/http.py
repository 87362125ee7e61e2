"""HTTP from inside Spark: kept-alive connections to agents, refusals, retries and the search for a leader.

Standard library only, blocking: Spark's Python workers have no other package of Shoal's. Topics, offsets and
records are unknown here. Answers are not trusted to be small or complete.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from shoal.credentials import NO_CREDENTIALS, Credentials, tell_in_the_open
from shoal.errors import ClientError
from shoal.spark.options.errors import SourceError
from shoal.spark.options.values import normal_url
from shoal.tls import client_context, tls_reason

T = TypeVar("T")

REQUEST_SECONDS_MAX: Final = 30.0  # silence of one connection: an agent answers or forwards within 5 s
DOCUMENT_BYTES_MAX: Final = 64 * 2**20  # routes of the largest cluster: some hundred bytes for each partition
IDLE_SECONDS_MAX: Final = 30.0  # an idle connection older than this is not tried: agents close them too
IDLE_CONNECTIONS_MAX: Final = 16  # kept open by one process, over all agents
JSON_MEDIA_TYPE: Final = "application/json"

MOVING_STATUSES: Final = frozenset({416, 421, 429, 502, 503, 504, 507})
"""Answers that another attempt may change. 416 too: the offset was committed, so that agent is behind."""

_NOT_HTTP: Final = (http.client.BadStatusLine, http.client.LineTooLong, http.client.UnknownProtocol)
"""Their texts are bytes that were sent: of an agent's port for gossip, none that a terminal should get."""

FAILED_LOGINS: Final = "too-many-failed-logins"

QUOTA_SECONDS_MAX: Final = 60.0
"""A longer wait is cut, and ends with the next refusal: a task that sleeps shows nobody why."""


class Persistence(NamedTuple):
    """Bounds of retries. With these pauses 30 attempts span 50 s: any election, most restarts."""

    attempts: int = 30  # without progress
    plan_attempts: int = 10  # 10 s: somebody waits for the query to begin
    first_pause_seconds: float = 0.05
    pause_seconds_max: float = 2.0

    def pause_seconds(self, attempt: int) -> float:
        """The pause before an attempt; the first has number 0 and no pause."""
        return min(self.pause_seconds_max, self.first_pause_seconds * 2.0 ** (attempt - 1))

    def persist(
        self,
        work: Callable[[int], T],
        what: str,
        pause: Callable[[float], None],
        *,
        planning: bool = False,
    ) -> T:
        """`work` with the attempt's number, repeated while it raises MovedError or NobodyError. Raises
        SourceError; with `planning` sooner, and at once where no agent answers: somebody waits."""
        failure: Exception | None = None
        for attempt in range(self.plan_attempts if planning else self.attempts):
            if attempt and not (isinstance(failure, MovedError) and failure.at_once):
                asked = failure.wait_seconds if isinstance(failure, MovedError) else 0.0
                pause(max(self.pause_seconds(attempt), asked))
            try:
                return work(attempt)
            except MovedError as error:
                failure = error
            except NobodyError as error:
                if planning:
                    raise
                failure = error
        raise SourceError(f"{what}: {failure}")


DEFAULT_RETRIES: Final = Persistence()


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: http.client.HTTPMessage | Mapping[str, Any]
    body: bytes


class MovedError(Exception):
    """This attempt failed, another may not. `at_once`: the next one needs no pause. `wait_seconds`: the least
    pause, as an agent has asked for it."""

    def __init__(self, detail: str, *, at_once: bool = False, wait_seconds: float = 0.0) -> None:
        super().__init__(detail)
        self.at_once = at_once
        self.wait_seconds = wait_seconds


class _Idle(NamedTuple):
    base: str
    connection: http.client.HTTPConnection
    since: float


class ConnectionPool:
    """Kept-alive connections of one process, given out to one request at a time, to any thread. All requests
    carry the same credentials.

    Python workers live on from one micro-batch to the next, so the pool is a global of the module. A process
    that was forked from one with connections begins with none: two must not share a socket.
    """

    def __init__(self, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.credentials = credentials
        self._idle: list[_Idle] = []
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def headers(self) -> dict[str, str]:
        """Of each request."""
        return self.credentials.headers

    def request(
        self,
        base: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Sequence[bytes | memoryview] | None = None,
        *,
        bytes_max: int = DOCUMENT_BYTES_MAX,
        seconds_max: float = REQUEST_SECONDS_MAX,
        admit: Callable[[int], None] = lambda length: None,
    ) -> Answer:
        """One exchange with the agent at `base`. Raises MovedError when it cannot be reached or breaks off.
        `admit` is told the length of the answer before it is read, and may raise an error of its own.

        A request that fails on a connection from the pool before any answer is sent once more on a new one:
        the agent may have closed it meanwhile. All requests here may be repeated (reads, and appends that
        carry a sequence).
        """
        failure: Exception | None = None
        for connection in filter(None, (self.take(base, seconds_max), self.open(base, seconds_max))):
            try:
                connection.request(method, path, body=body, headers={**headers, **self.headers})
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                failure = error
            else:
                return self._finish(base, connection, response, bytes_max, admit)
        raise MovedError(f"{base}: {reason_of(failure)}") from failure

    def open(self, base: str, seconds_max: float = REQUEST_SECONDS_MAX) -> http.client.HTTPConnection:
        """One that connects with its first request. Raises MovedError for an agent without TLS that must not
        hear the token."""
        parts = urlsplit(base)
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.netloc, timeout=seconds_max, context=self._context)
        if self.credentials.needs_tls:
            raise MovedError(f"{base} has no TLS, and the token goes only to agents with TLS")
        if self.credentials.token is not None:
            tell_in_the_open(base)
        return http.client.HTTPConnection(parts.netloc, timeout=seconds_max)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        """Raises MovedError for files that do not fit: those of an executor may be others."""
        try:
            context = client_context(self.credentials)
        except ClientError as error:
            raise MovedError(str(error)) from None
        context.sslsocket_class = TlsSocket
        return context

    def first_of(
        self, requests: Sequence[tuple[str, str]], seconds: float
    ) -> list[tuple[int, Answer | MovedError]]:
        """GET several (base, path) at once: the answers that are there with the first one, by their numbers.
        The others are given up. Empty when no answer came in time."""
        waiting: dict[int, http.client.HTTPConnection] = {}
        kept: set[int] = set()
        try:
            done: list[tuple[int, Answer | MovedError]] = []
            for number, (base, path) in enumerate(requests):
                connection = self.take(base)
                if connection is not None:
                    kept.add(number)
                try:
                    waiting[number] = connection = connection or self.open(base)
                    connection.request("GET", path, headers={"Accept": JSON_MEDIA_TYPE, **self.headers})
                except (OSError, http.client.HTTPException) as error:
                    done.append((number, MovedError(f"{base}: {reason_of(error)}")))
                except MovedError as error:
                    done.append((number, error))
            if not done:
                sockets = {connection.sock: number for number, connection in waiting.items()}
                readable = answered(list(sockets), seconds)
                done = [
                    (number, self._answer_of(requests[number], waiting.pop(number), number in kept))
                    for number in sorted(sockets[ready] for ready in readable)
                ]
            return done
        finally:
            for connection in waiting.values():
                connection.close()

    def _answer_of(
        self, asked: tuple[str, str], connection: http.client.HTTPConnection, kept: bool
    ) -> Answer | MovedError:
        """The answer that has begun to arrive; a kept connection that was closed meanwhile is replaced."""
        base, path = asked
        try:
            try:
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not kept:
                    raise MovedError(f"{base}: {reason_of(error)}") from error
                return self.request(base, "GET", path, {"Accept": JSON_MEDIA_TYPE})
            return self._finish(base, connection, response, DOCUMENT_BYTES_MAX, lambda length: None)
        except MovedError as error:
            return error

    def _finish(
        self,
        base: str,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        bytes_max: int,
        admit: Callable[[int], None],
    ) -> Answer:
        try:
            admit(response.length or 0)
            body = response.read(bytes_max + 1)
            if len(body) > bytes_max:
                raise MovedError(f"{base} sent more than {bytes_max} bytes")
            if response.length:  # read(n) does not complain when the connection ends early
                raise MovedError(f"{base} broke off within an answer")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise MovedError(f"{base}: {reason_of(error)}") from error
        except Exception:
            connection.close()
            raise
        if response.will_close or not response.isclosed():
            connection.close()
        else:
            self.keep(base, connection)
        return Answer(response.status, response.headers, body)

    def take(self, base: str, seconds_max: float = REQUEST_SECONDS_MAX) -> http.client.HTTPConnection | None:
        with self._lock:
            if self._process != os.getpid():
                self._process, self._idle = os.getpid(), []
            horizon = time.monotonic() - IDLE_SECONDS_MAX
            while self._idle and self._idle[0].since < horizon:
                self._idle.pop(0).connection.close()
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place].base == base:
                    connection = self._idle.pop(place).connection
                    connection.sock.settimeout(seconds_max)
                    return connection
        return None

    def keep(self, base: str, connection: http.client.HTTPConnection) -> None:
        """Take an idle connection back."""
        with self._lock:
            self._idle.append(_Idle(base, connection, time.monotonic()))
            if len(self._idle) > IDLE_CONNECTIONS_MAX:
                self._idle.pop(0).connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().connection.close()


POOL: Final = ConnectionPool()


_POOLS: Final[list[ConnectionPool]] = []
POOLS_MAX: Final = 16  # of different credentials in one process: more of them connect anew now and then


def pool_of(credentials: Credentials) -> ConnectionPool:
    """This process's connections for requests with these credentials. Compared and not hashed: a token in a
    file is another one from time to time."""
    if credentials == NO_CREDENTIALS:
        return POOL
    for pool in _POOLS:
        if pool.credentials == credentials:
            return pool
    if len(_POOLS) >= POOLS_MAX:
        _POOLS.pop(0).close()
    _POOLS.append(ConnectionPool(credentials))
    return _POOLS[-1]


class TlsSocket(ssl.SSLSocket):
    """A socket that can be asked whether an answer has begun: TLS has words of its own, which also make a
    socket readable."""

    _early = b""

    def has_answer(self) -> bool:
        """Whether a byte of it is there, or the connection has ended; does not wait."""
        timeout = self.gettimeout()
        self.setblocking(False)
        try:
            self._early = self._early or super().recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            return True  # whoever reads meets it again
        finally:
            self.settimeout(timeout)
        return True

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """As a socket's."""
        if self._early and len(buffer):
            buffer[:1], self._early = self._early, b""
            return 1
        return super().recv_into(buffer, nbytes, flags)


def answered(sockets: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    """Those that an answer has come to, once there is one; empty when none came in time."""
    deadline = time.monotonic() + seconds
    while True:
        readable = select.select(sockets, (), (), max(0.0, deadline - time.monotonic()))[0]
        found = [one for one in readable if not isinstance(one, TlsSocket) or one.has_answer()]
        if found or not readable:
            return found


def reason_of(error: BaseException | None) -> str:
    """An exchange's failure in a few words, with a remedy where TLS has failed."""
    if error is None:
        return "no answer"
    if isinstance(error, _NOT_HTTP) and not isinstance(error, http.client.RemoteDisconnected):
        return "what answers there does not speak HTTP (a gossip port, perhaps)"
    return tls_reason(error) or str(error) or type(error).__name__


def document_of(body: bytes) -> dict[str, Any]:
    """A JSON object; empty for anything else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def said(base: str, answer: Answer) -> str:
    """A refusal in one line."""
    problem = document_of(answer.body)
    words = problem.get("detail") or problem.get("title") or "no detail given"
    return f"{base} says {answer.status} {problem.get('code', '')}: {' '.join(str(words).split())[:300]}"


def ask(pool: ConnectionPool, agents: Sequence[str], path: str) -> tuple[dict[str, Any], str | None]:
    """A JSON document from the first agent that has it, or the refusal of one.

    Raises SourceError when no agent is reached or one fails, MovedError when another attempt may succeed.
    """
    refusal, moving, unreached = None, [], []
    for base in agents:
        try:
            answer = pool.request(base, "GET", path, {"Accept": JSON_MEDIA_TYPE})
        except MovedError as error:
            unreached.append(str(error))
            continue
        if answer.status == 200:
            return document_of(answer.body), None
        if answer.status == 404:
            refusal = said(base, answer)  # an agent that has just joined may not know it yet
        elif may_move(answer):
            moving.append(said(base, answer))
        else:
            raise SourceError(said(base, answer))
    if refusal is not None:
        return {}, refusal
    if moving:
        raise MovedError("; ".join(moving))
    raise NobodyError(f"no agent answers (option agent, or SHOAL_AGENT): {'; '.join(unreached)}")


def may_move(answer: Answer) -> bool:
    """Whether another attempt may have another answer. Credentials that are wrong stay so."""
    if answer.status not in MOVING_STATUSES:
        return False
    return answer.status != 429 or document_of(answer.body).get("code") != FAILED_LOGINS


class NobodyError(SourceError):
    """No agent could be reached at all."""


class LeaderSearch:
    """The agent to ask about one partition: the leader as known; after a failure by turns the leader that
    agents name then, and any agent, which forwards. A leader that a refusal names is asked next."""

    def __init__(self, agents: Sequence[str], leader: str | None, find: Callable[[], str | None]) -> None:
        """`find` asks agents for the leader's address; it raises MovedError or SourceError."""
        self._agents = agents
        self.leader = leader
        """As known last."""
        self._find = find
        self._named = False

    def choose(self, attempt: int) -> tuple[str, bool]:
        """The address for an attempt, numbered from 0, and whether it is a leader's."""
        if self._named:
            self._named = False
        elif attempt % 2 == 1:
            try:
                self.leader = self._find() or self.leader
            except SourceError as error:  # while agents change places none may answer: another attempt may
                raise MovedError(str(error)) from error
        elif attempt:
            return self._agents[(attempt // 2) % len(self._agents)], False
        return (self._agents[0], False) if self.leader is None else (self.leader, True)

    def refused(self, base: str, answer: Answer) -> MovedError:
        """The error for a refusal with one of MOVING_STATUSES."""
        problem = document_of(answer.body)
        leader_url = problem.get("leader_url")
        if answer.status == 421 and isinstance(leader_url, str):
            with suppress(SourceError):  # not an address: agents are asked next
                self.leader, self._named = normal_url(leader_url), True
        wait_ms = problem.get("retry_after_ms")
        wait_seconds = 0.0
        if problem.get("code") == "quota-exceeded" and isinstance(wait_ms, int):
            wait_seconds = min(max(0, wait_ms) / 1_000, QUOTA_SECONDS_MAX)
        return MovedError(said(base, answer), at_once=self._named, wait_seconds=wait_seconds)
