"""Requests to a cluster over HTTP: which agent is asked, what is retried, until when.

Law of this file: it moves bytes and follows the verdicts of routes.py; it decides nothing itself and
knows neither records nor topics' contents. aiohttp is met here and in failures.py only.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp

from shoal.client.http import routes
from shoal.client.http.append import PostConnections
from shoal.client.http.bulk import BulkConnections, OnHead
from shoal.client.http.connection import NotConnected, Unsupported
from shoal.client.http.failures import Unreachable as Unreachable
from shoal.client.http.failures import error_of, failure_of
from shoal.client.http.renewed import with_the_newest_token
from shoal.client.http.routes import AgentList, Attempts, Failure, RetryPolicy, RouteTable, Verdict
from shoal.client.http.wire import BrokenAnswer, UnknownLength, WholeAnswer, request_head
from shoal.connector import EndingConnector
from shoal.credentials import NO_CREDENTIALS, Credentials, tell_in_the_open
from shoal.errors import ClientClosed, ShoalError
from shoal.lookup import Lookup
from shoal.tls import client_context

# No answer is larger than max_bytes of a read (64 MiB) and one batch above it.
ANSWER_BYTES_MAX = 96 << 20
# An attempt's time on the socket beyond the agent's timeout: the agent answers within its own, the network
# adds this.
ANSWER_GRACE_MS = 2_000
# Blocking queries for routes; below the agent's maximum of 60 s and most proxies' idle limits.
WATCH_WAIT_SECONDS = 30
# How long a measured distance to a replica is believed: networks change slowly, agents restart.
DISTANCE_VALID_MS = 60_000


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Times in milliseconds. An agent has `attempt_timeout_ms` to answer one attempt. A client that no agent
    has ever answered waits `first_contact_ms` for one to listen: a cluster may start beside it, and a wrong
    URL should not look like a hang."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    first_contact_ms: int = 10_000
    attempt_timeout_ms: int = 5_000
    connect_timeout_ms: int = 1_000
    connections_max: int = 100


class Answer(NamedTuple):
    """A successful answer, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes | memoryview

    def document(self) -> dict[str, Any]:
        """The body as a JSON object. Raises ShoalError internal if it is none: the agent broke its
        contract.
        """
        document = routes.json_object(self.body)
        if document is None:
            raise ShoalError("internal", "the agent's answer is not a JSON object")
        return document


ANY_SCHEME = ("http://", "https://", routes.UNIX)
SECURE_SCHEMES = ("https://", routes.UNIX)
UNIX_HOST = "http://localhost"
"""Whom a request by the path of a socket names: an agent takes it for its own host."""
LOOK_AGAIN_MS = 100
"""Between two looks for the successor of a silent leader: an election is over within a few of them."""


class Call(NamedTuple):
    """One request, wherever it will go."""

    method: str
    path: str
    params: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes | memoryview | None = None
    wait_ms: int = 0  # how long the agent may hold it beyond the attempt's timeout
    bulk: bool = False  # a GET whose answer is large: it is received in place
    on_head: OnHead | None = None  # for those: hears the headers before the body has come
    append: bool = False  # a POST with a body, which leaves uncopied
    on_written: Callable[[], None] | None = None  # for those: may hear that all of it has left
    body_again: Callable[[], bytes] | None = None  # of every attempt after one that may have happened

    def after(self, failure: Failure) -> Call:
        """The request of the next attempt."""
        if failure.definite or self.body_again is None:
            return self
        return self._replace(body=self.body_again(), body_again=None)


def topic_path(name: str) -> str:
    """The path of a topic; an illegal name stays one segment: the agent says what is wrong with it. Raises
    ShoalError illegal-name for those that a path cannot hold: none of it would reach the agent."""
    if name in ("", ".", ".."):
        raise ShoalError(
            "illegal-name", f"{name!r} is no topic name: use letters, digits, . _ - (not . or ..)"
        )
    return f"/v1/topics/{quote(name, safe='')}"


def now_ms() -> int:
    """Milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class Cluster:
    """A client's view of the agents, and its connections to them."""

    def __init__(
        self, bootstrap: Sequence[str], config: ClientConfig, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        """Raises ClientError for credentials whose files do not fit."""
        self.config = config
        self.credentials = credentials
        self.agents = AgentList([])
        self.agents.add(bootstrap)
        self.routes = RouteTable()
        self.retries = 0
        self._looks: dict[str, asyncio.Future[None]] = {}
        """The newest look at a topic's routes for requests whose leader is silent: they share it."""
        self._distances: dict[str, tuple[float, int]] = {}
        """Seconds to an answer of each agent that was measured, and when (now_ms)."""
        self._lookup = Lookup()
        connect_s = config.connect_timeout_ms / 1_000
        self.tls = cache(partial(client_context, credentials))
        """The context of every connection with TLS, made once: the system's authorities take some 20 ms."""
        if credentials.has_files:
            self.tls()
        self._bulk = BulkConnections(connect_s, ANSWER_BYTES_MAX, self._lookup, self.tls)
        self._posts = PostConnections(connect_s, config.connections_max, self._lookup, self.tls)
        self._not_in_place: set[str] = set()
        """Agents behind something that hides the length of answers; at most as many as AgentList holds."""
        self._answered = False
        self.schemes: tuple[str, ...] = ANY_SCHEME
        """URLs that this client asks begin so. With a token, and only agents with TLS named to begin with, no
        other agent gets it, whatever routes or members say."""
        self._rng = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._session: aiohttp.ClientSession | None = None
        self._unix_sessions: dict[str, aiohttp.ClientSession] = {}
        """By URL, of agents on this host that were named by the path of a socket."""

    @property
    def is_open(self) -> bool:
        """Whether it has connections to ask by."""
        return self._session is not None

    def signed(self, call: Call) -> Call:
        """The request with the token, if there is one."""
        headers = self.credentials.headers
        return call._replace(headers={**call.headers, **headers}) if headers else call

    async def open(self) -> None:
        assert self._session is None
        is_open = any(url.startswith("http://") for url in self.agents.urls)
        self.schemes = ANY_SCHEME if is_open or self.credentials.token is None else SECURE_SCHEMES
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.config.connect_timeout_ms / 1_000)
        connector = EndingConnector(
            self._lookup,
            limit=self.config.connections_max,
            ssl=self.tls() if self.credentials.has_files else True,
        )
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        for url in self.agents.urls:
            if url.startswith(routes.UNIX):
                path = aiohttp.UnixConnector(url.removeprefix(routes.UNIX), limit=self.config.connections_max)
                self._unix_sessions[url] = aiohttp.ClientSession(
                    connector=path, timeout=timeout, auto_decompress=False
                )

    async def close(self) -> None:
        for look in self._looks.values():
            look.cancel()
        await asyncio.gather(*self._looks.values(), return_exceptions=True)
        self._bulk.close()
        self._posts.close()
        if self._session is not None:
            for session in (self._session, *self._unix_sessions.values()):
                await session.close()
            self._session = None
            self._unix_sessions.clear()

    async def anywhere(self, call: Call, *, retry: bool = False, only_once: bool = False) -> Answer:
        """Ask agents in turn until one answers. `only_once`: one that may have happened is not repeated.

        Raises ShoalError with an agent's refusal, Unreachable when none answered. Each agent is asked once,
        with `retry`, or beyond a quota, as often as `retry` of the configuration says. While none has ever
        answered, and none listens, the configuration's `first_contact_ms` counts instead."""
        attempts = Attempts(now_ms(), settle_ms=0)
        while True:
            failures: list[Failure] = []
            for url in self.agents.in_order():
                try:
                    return await self._attempt(url, call)
                except Failure as failed:
                    failures.append(failed)
                    if only_once and not failed.definite:
                        raise error_of(failed, 0, definite=False) from failed
                    call = call.after(failed)
                    # A refusal that every agent would repeat ends the round.
                    if failed.definite and not failed.retriable and failed.code not in routes.NO_ANSWER:
                        break
            # The answer of a living agent tells more than that another one is down.
            # Of those that are not there, one that only a change of files or URLs mends.
            final = [one for one in failures if not one.retriable and not self._answered]
            failure = next(
                (one for one in failures if one.code not in routes.NO_ANSWER), (failures + final)[-1]
            )
            definite = all(one.definite for one in failures)
            # No agent has ever answered: none runs yet, or the URLs are wrong.
            unmet = failure.code == routes.UNREACHABLE and not self._answered
            total_ms = self.config.retry.total_ms if retry or failure.code == routes.QUOTA_EXCEEDED else -1
            limit_ms = self.config.first_contact_ms if unmet else total_ms
            await self._wait(attempts, failure, RetryPolicy(total_ms=limit_ms), definite=definite)

    async def at_agent(self, call: Call) -> Answer:
        """Ask the first bootstrap agent, once: for requests that concern that very agent, or may not be
        repeated.
        """
        try:
            return await self._attempt(self.agents.urls[0], call)
        except Failure as failure:
            raise error_of(failure, 0, failure.definite) from failure

    async def at_leader(self, topic: str, partition: int, call: Call, deposed_grace_ms: int) -> Answer:
        """Ask the partition's leader, or the one that follows it, until one answers or the configuration's
        `retry` gives up, `wait_ms` of the call later.

        For requests that may be repeated. An attempt is given up `deposed_grace_ms` after the routes have
        named another leader. Raises ShoalError with the last refusal, Unreachable when there was no answer;
        both are `definite` only if no attempt can have happened.
        """
        attempts, verdict = Attempts(now_ms()), Verdict(retry=True)
        policy = replace(self.config.retry, total_ms=self.config.retry.total_ms + call.wait_ms)
        while True:
            try:
                attempt = self._leader_attempt(topic, partition, call, verdict.through_any)
                return await self._unless_deposed(topic, partition, attempt, deposed_grace_ms)
            except Failure as failed:
                failure, call = failed, call.after(failed)
            if failure.code == "not-leader" and failure.leader_url is not None:
                self.routes.learn_leader(topic, partition, failure.leader_url, failure.term)
            verdict = await self._wait(attempts, failure, policy, definite=failure.definite)
            if verdict.refresh:
                with contextlib.suppress(ShoalError, Unreachable):  # the next attempt says what is wrong
                    await self.refresh(topic)

    async def post_alone(
        self, url: str, request: bytes, timeout_seconds: float
    ) -> tuple[WholeAnswer | None, bool]:
        """Ask an agent once, by a request in one piece: its answer, None if there is none, and whether the
        request may have reached it."""
        try:
            return await self._posts.post_alone(url, request, timeout_seconds), True
        except (NotConnected, Unsupported):
            return None, False
        except (OSError, UnknownLength):  # a TimeoutError is one
            return None, True

    async def at_replica(self, topic: str, partition: int, call: Call) -> Answer | None:
        """Ask the replica that answers soonest, once; None when that is the leader or it does not answer
        well: the leader knows better then. For reads that name consistency=local. Raises ShoalError
        unknown-key, which is an answer too."""
        urls = self.routes.replica_urls(topic, partition)
        url = await self._nearest(urls)
        if url is None or url == self.routes.leader_url(topic, partition):
            return None
        try:
            return await self._attempt(url, call._replace(params={**call.params, "forward": "false"}))
        except Failure as failure:
            if failure.code == "unknown-key":
                raise error_of(failure, 0, definite=True) from failure
            self._distances[url] = (float("inf"), now_ms())
            return None

    async def _nearest(self, urls: Sequence[str]) -> str | None:
        """Of these agents the one that answers soonest, measured once a minute; None when none does."""
        stale_ms = now_ms() - DISTANCE_VALID_MS
        unknown = [url for url in urls if self._distances.get(url, (0.0, stale_ms - 1))[1] < stale_ms]
        await asyncio.gather(*(self._measure(url) for url in unknown))
        reached = [url for url in urls if self._distances[url][0] < float("inf")]
        return min(reached, key=lambda url: self._distances[url][0], default=None)

    async def _measure(self, url: str) -> None:
        try:
            for _ in range(2):  # the first opens the connection
                started = time.perf_counter()
                await self._attempt(url, Call("GET", "/livez"))
                distance = time.perf_counter() - started
        except Failure:
            distance = float("inf")
        self._distances[url] = (distance, now_ms())

    async def refresh(self, topic: str, *, retry: bool = False) -> str:
        """Fetch the topic's routes from any agent; returns their version. ShoalError unknown-topic if there
        are none.
        """
        call = Call("GET", "/v1/routes", {"topic": topic})
        return self._learn(topic, await self.anywhere(call, retry=retry))

    async def watch(self, topic: str) -> None:
        """Keep the topic's routes fresh by blocking queries, until cancelled."""
        version, attempt = "", 0
        while True:
            params = {"topic": topic, "wait": f"{WATCH_WAIT_SECONDS}s"}
            if version:
                params["after_version"] = version
            try:
                call = Call("GET", "/v1/routes", params, wait_ms=WATCH_WAIT_SECONDS * 1_000)
                version, attempt = self._learn(topic, await self.anywhere(call)), 0
            except (ShoalError, Unreachable):
                # The agents are down, or say so. The next request to be sent meets that too, and reports it.
                version, attempt = "", attempt + 1
            # Also after an answer: an agent whose version races ahead must not make this loop spin.
            delay_ms = min(1_000, self.config.retry.base_ms << min(attempt, 16))
            await asyncio.sleep(delay_ms / 1_000)

    async def learn_agents(self) -> None:
        """Learn further agents from the member list, so that any bootstrap agent may die afterwards."""
        self.learn_members((await self.anywhere(Call("GET", "/v1/members"), retry=True)).document())

    def learn_members(self, document: Mapping[str, Any]) -> None:
        """The same, from a document of GET /v1/members."""
        members = document.get("members")
        if isinstance(members, list):
            alive = [m for m in members if isinstance(m, dict) and m.get("status") == "alive"]
            self.agents.add([m["url"] for m in alive if m.get("url")])

    def _learn(self, topic: str, answer: Answer) -> str:
        document = answer.document()
        try:
            self.routes.learn(document)
        except ValueError as error:
            raise ShoalError("internal", str(error)) from error
        if topic not in document["topics"]:
            self.routes.forget(topic)
            raise ShoalError("unknown-topic", f"there is no topic {topic!r}")
        entries = document["topics"][topic].get("partitions", [])
        self.agents.add([r["url"] for entry in entries for r in entry.get("replicas", []) if r.get("url")])
        return str(document.get("version", ""))

    async def _wait(
        self, attempts: Attempts, failure: Failure, policy: RetryPolicy, *, definite: bool
    ) -> Verdict:
        """Wait until the next attempt may begin. Raises what the failure means if there is to be none."""
        attempts.definite = attempts.definite and definite
        elapsed_ms = now_ms() - attempts.began_ms
        verdict = routes.after_failure(
            failure, attempts.count, elapsed_ms, policy, self._rng, settle_ms=attempts.settle_ms
        )
        if not verdict.retry:
            is_given_up = failure.retriable or attempts.count > 0
            raise error_of(failure, elapsed_ms if is_given_up else 0, attempts.definite)
        attempts.count += 1
        self.retries += 1
        await asyncio.sleep(verdict.delay_ms / 1_000)
        return verdict

    async def _leader_attempt(self, topic: str, partition: int, call: Call, through_any: bool) -> Answer:
        url = self.routes.leader_url(topic, partition)
        if through_any:
            return await self._attempt(self.agents.in_order()[0], call)
        if self.routes.topic(topic) is None:
            raise Failure("unknown-topic", f"there is no topic {topic!r}", False, definite=True)
        if url is None:
            raise Failure("no-leader", f"{topic}/{partition} has no leader", True, definite=True)
        return await self._attempt(url, call._replace(params={**call.params, "forward": "false"}))

    async def _unless_deposed(
        self, topic: str, partition: int, attempt: Coroutine[Any, Any, Answer], grace_ms: int
    ) -> Answer:
        """Await the attempt, but leave a leader that stays silent while other agents name another one."""
        asked = self.routes.leader_url(topic, partition)
        task = asyncio.ensure_future(attempt)
        try:
            await asyncio.wait((task,), timeout=grace_ms / 1_000)
            while not task.done():
                led_by = self.routes.leader_url(topic, partition)
                if asked is not None and led_by not in (None, asked):
                    self.agents.failed(asked)
                    detail = f"{asked} does not answer, {led_by} leads now"
                    raise Failure(routes.CONNECTION_LOST, detail, True, definite=False)
                look = self._looks.get(topic)
                if look is None or look.done():
                    look = self._looks[topic] = asyncio.ensure_future(self._look_elsewhere(topic, asked))
                await asyncio.wait((task, look), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait((task,), timeout=min(grace_ms, LOOK_AGAIN_MS) / 1_000)
            return task.result()
        finally:
            task.cancel()

    async def _look_elsewhere(self, topic: str, avoided: str | None) -> None:
        """Refresh the routes from agents other than the one that may be out of order."""
        call = Call("GET", "/v1/routes", {"topic": topic})
        for url in self.agents.in_order():
            if url == avoided:
                continue
            try:
                self._learn(topic, await self._attempt(url, call))
            except (Failure, ShoalError):
                continue
            return

    async def _attempt(self, url: str, call: Call) -> Answer:
        if self._session is None:
            raise ClientClosed(
                "the client is not open: `await client.open()` first (and `close()` at the end), or use it in"
                " `async with`"
            )
        if not url.startswith(self.schemes):
            detail = f"{url} has no TLS, and the token goes only to agents with TLS, like those named"
            raise Failure(routes.UNTRUSTED, detail, retriable=False, definite=True)
        if self.credentials.token is not None:
            tell_in_the_open(url)
        seconds = (self.config.attempt_timeout_ms + call.wait_ms + ANSWER_GRACE_MS) / 1_000
        try:
            async with asyncio.timeout(seconds):
                ask = partial(self._answer, self._session, url)
                answer = await with_the_newest_token(partial(self.signed, call), ask)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.agents.failed(url)
            raise failure_of(error, url, may_pass=self._answered) from error
        self.agents.answered(url)
        self._answered = True
        return answer

    async def _answer(self, session: aiohttp.ClientSession, url: str, call: Call) -> Answer:
        if call.bulk and url not in self._not_in_place and url.startswith("http"):
            try:
                got = await self._bulk.get(url, call.path, call.params, call.headers, call.on_head)
            except (UnknownLength, Unsupported):
                self._not_in_place.add(url)
            else:
                return _judged(got.status, got.headers, got.body)
        if call.append and url not in self._not_in_place and url.startswith("http"):
            try:
                return await self._post(url, call)
            except Unsupported:  # the same for every agent, and nothing has happened
                self._not_in_place.add(url)
        return await self._exchange(session, url, call)

    async def _post(self, url: str, call: Call) -> Answer:
        body = call.body or b""
        headers = {"Content-Length": str(len(body)), **call.headers}
        head = request_head(call.method, url, call.path, call.params, headers)
        try:
            got = await self._posts.post(url, head, body, call.on_written)
        except UnknownLength as error:  # it may have happened: a repetition goes by aiohttp
            self._not_in_place.add(url)
            raise BrokenAnswer("an answer without its length") from error
        if got.status < 300:
            return Answer(got.status, {}, got.body)
        return _judged(got.status, got.headers(), got.body)

    async def _exchange(self, session: aiohttp.ClientSession, url: str, call: Call) -> Answer:
        by_path = self._unix_sessions.get(url)
        request = (by_path or session).request(
            call.method,
            (url if by_path is None else UNIX_HOST) + call.path,
            params=call.params,
            headers=call.headers,
            data=call.body,
            allow_redirects=False,
        )
        async with request as response:
            body = await _read_bounded(response)
            return _judged(response.status, response.headers, body)


def _judged(status: int, headers: Mapping[str, str], body: bytes | memoryview) -> Answer:
    if status < 300:
        return Answer(status, headers, body)
    problem = routes.json_object(body)
    raise routes.failure_from_problem(status, problem, headers.get("Retry-After"))


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size_bytes = 0
    async for piece in response.content.iter_any():
        size_bytes += len(piece)
        if size_bytes > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
