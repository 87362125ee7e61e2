"""Where a client's request goes, and what follows when an attempt fails.

Law of this file: pure. It learns routes from documents that others fetched and failures that others met; it
knows no socket, no clock and no randomness (`elapsed_ms` and `rng` are arguments). Shell: requests.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from shoal.format.hash_ranges import HashRange

# Codes that a client gives to failures which no agent described. They stand beside the table of
# shoal.errors, and never travel.
UNREACHABLE = "not-connected"  # no connection was made: nothing happened
CONNECTION_LOST = "connection-lost"  # the connection broke, or no answer came in time: it may have happened
UNTRUSTED = "untrusted"  # TLS did not come about: nothing happened
NO_ANSWER = (UNREACHABLE, UNTRUSTED, CONNECTION_LOST)  # an agent that could not be heard
UNEXPECTED_ANSWER = "unexpected-answer"  # an answer that no agent gives: a proxy, another server

# The code of an agent that is leaving. Those before feature levels tell clients to wait for a second then, in
# which another agent would have answered.
STOPPING = "stopping"
QUOTA_EXCEEDED = "quota-exceeded"
RETRY_AFTER_SECONDS_MAX = 5

# A hint of the leader in a 421 is followed at once this many times; two agents that name each other would
# otherwise be asked in turn without a pause.
IMMEDIATE_HINTS_MAX = 3
# A topic made a moment ago is not yet known to every agent: routes named it, so "unknown" is believed only
# after this long.
SETTLE_MS = 3_000


class PartitionRoute(NamedTuple):
    """One partition as the routes tell it; `leader_url` is None while it has no leader, `term` orders claims,
    agents at `replica_urls` hold it, the leader too.
    """

    partition: int
    hash_range: HashRange
    leader_url: str | None
    term: int
    replica_urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicRoutes:
    """A topic's partitions in order of their numbers, those that take appends only."""

    topic_id: str
    partitions: tuple[PartitionRoute, ...]

    @cached_property
    def ranges(self) -> tuple[HashRange, ...]:
        """The hash ranges, in the order of `partitions`."""
        return tuple(route.hash_range for route in self.partitions)

    @cached_property
    def _by_number(self) -> dict[int, PartitionRoute]:
        return {route.partition: route for route in self.partitions}

    def get(self, partition: int) -> PartitionRoute | None:
        """The route of the partition of that number, or None."""
        return self._by_number.get(partition)


@dataclass(eq=False)
class Failure(Exception):
    """One attempt that failed: its code, whether it may have happened, and the agent's words. Raised by
    an attempt and judged by the loop around it; it never leaves requests.py."""

    code: str
    detail: str
    retriable: bool
    definite: bool
    leader_url: str | None = None
    term: int = 0
    retry_after_ms: int = 0
    problem: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses between attempts double from `base_ms` up to `cap_ms`; the whole is given up after `total_ms`.

    The cap is a fraction of a fail-over (about a second), so that a new leader does not wait for its clients.
    """

    base_ms: int = 20
    cap_ms: int = 250
    total_ms: int = 60_000


class Verdict(NamedTuple):
    """The step after a failure: give up, or try again after `delay_ms`, after a refresh of the routes or not,
    at the leader or at any agent (which forwards).
    """

    retry: bool
    delay_ms: int = 0
    refresh: bool = False
    through_any: bool = False


@dataclass(slots=True)
class Attempts:
    """Those of one request that failed: how many, since when, and whether none of them can have happened."""

    began_ms: int
    settle_ms: int = SETTLE_MS
    count: int = 0
    definite: bool = True


class RouteTable:
    """The leaders as far as this client knows. A claim of a higher term replaces one of a lower, never the
    reverse: answers come from different agents and in any order.
    """

    def __init__(self) -> None:
        self._topics: dict[str, TopicRoutes] = {}
        self.leader_changes = 0

    def topic(self, name: str) -> TopicRoutes | None:
        return self._topics.get(name)

    def route(self, topic: str, partition: int) -> PartitionRoute | None:
        """The partition's route, as far as known."""
        routes = self._topics.get(topic)
        return routes.get(partition) if routes else None

    def leader_url(self, topic: str, partition: int) -> str | None:
        """Where the partition is led, as far as known."""
        route = self.route(topic, partition)
        return route.leader_url if route else None

    def replica_urls(self, topic: str, partition: int) -> tuple[str, ...]:
        """Where the partition is held, as far as known."""
        route = self.route(topic, partition)
        return route.replica_urls if route else ()

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def learn(self, document: Mapping[str, Any]) -> None:
        """Take in the body of GET /v1/routes. Raises ValueError on anything else."""
        try:
            topics = {name: _topic_routes(entry) for name, entry in document["topics"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a routing document: {error!r}") from error
        for name, fresh in topics.items():
            known = self._topics.get(name)
            self._topics[name] = self._merged(known, fresh) if known else fresh

    def learn_leader(self, topic: str, partition: int, url: str, term: int) -> bool:
        """Take in the hint of a 421; False when something newer or the same was known."""
        known = self.route(topic, partition)
        if known is None or term < known.term or (known.leader_url == url and term == known.term):
            return False
        led = self._newer(known, known._replace(leader_url=url, term=term))
        routes = self._topics[topic]
        partitions = tuple(led if route is known else route for route in routes.partitions)
        self._topics[topic] = TopicRoutes(routes.topic_id, partitions)
        return True

    def _merged(self, known: TopicRoutes, fresh: TopicRoutes) -> TopicRoutes:
        if known.topic_id != fresh.topic_id:
            return fresh  # deleted and made again: its terms begin anew
        partitions = tuple(
            self._newer(before, route) if (before := known.get(route.partition)) else route
            for route in fresh.partitions
        )
        return TopicRoutes(fresh.topic_id, partitions)

    def _newer(self, known: PartitionRoute, fresh: PartitionRoute) -> PartitionRoute:
        if fresh.term < known.term or (fresh.term == known.term and fresh.leader_url is None):
            return known._replace(hash_range=fresh.hash_range, replica_urls=fresh.replica_urls)
        if known.leader_url is not None and fresh.leader_url != known.leader_url:
            self.leader_changes += 1  # a first leader replaces nobody
        return fresh


def _topic_routes(entry: Mapping[str, Any]) -> TopicRoutes:
    routes = []
    for partition in entry["partitions"]:
        if partition.get("successors"):
            continue  # sealed: its range belongs to its successors
        low, high = partition["hash_range"]
        urls = [replica["url"] for replica in partition.get("replicas", ()) if replica.get("url")]
        routes.append(
            PartitionRoute(
                int(partition["partition"]),
                HashRange(int(low), int(high)),
                (partition.get("leader_url") or "").rstrip("/") or None,
                int(partition.get("term") or 0),
                tuple(url.rstrip("/") for url in urls),
            )
        )
    return TopicRoutes(str(entry.get("id", "")), tuple(sorted(routes)))


def after_failure(
    failure: Failure,
    attempt: int,
    elapsed_ms: int,
    policy: RetryPolicy,
    rng: random.Random,
    *,
    settle_ms: int = SETTLE_MS,
) -> Verdict:
    """The step after attempt number `attempt` (from 0) failed, `elapsed_ms` after the first one began.

    `settle_ms`: how long "unknown" may only mean that an agent has not heard of a new topic; 0 where no agent
    has named it before. Only for requests that may be repeated: reads, and appends which carry a producer's
    sequence. For these an outcome in doubt is as good a reason to try again as a refusal.
    """
    # One answer that was long in coming says nothing of what the agents have heard meanwhile.
    may_settle = elapsed_ms < settle_ms or (settle_ms > 0 and attempt == 0)
    settling = failure.code in ("unknown-topic", "unknown-partition") and may_settle
    if not (failure.retriable or not failure.definite or settling):
        return Verdict(retry=False)
    if failure.code == "not-leader" and failure.leader_url is not None and attempt < IMMEDIATE_HINTS_MAX:
        return Verdict(retry=elapsed_ms <= policy.total_ms)
    delay_ms = min(policy.cap_ms, policy.base_ms << min(attempt, 16))
    delay_ms = max(failure.retry_after_ms, int(delay_ms * rng.uniform(0.5, 1.0)))
    # A leader whose advertised address this client cannot reach is reached through its peers, every other
    # time.
    through_any = failure.code in NO_ANSWER and attempt % 2 == 1
    # Beyond a quota nothing has moved, and to ask for the routes would use up what the wait was for.
    refresh = failure.code != QUOTA_EXCEEDED
    return Verdict(elapsed_ms + delay_ms <= policy.total_ms, delay_ms, refresh, through_any)


def json_object(body: bytes | memoryview) -> dict[str, Any] | None:
    """The JSON object that a body is; None if it is none."""
    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def failure_from_problem(
    status: int, problem: Mapping[str, Any] | None, retry_after: str | None = None
) -> Failure:
    """The failure that an answer of status 400 or above describes; `problem` is its document, None if it has
    none."""
    if problem is None or not isinstance(problem.get("code"), str):
        retriable = status in (502, 503, 504)
        return Failure(
            UNEXPECTED_ANSWER, f"HTTP {status} without a problem document", retriable, definite=False
        )
    seconds = int(retry_after) if retry_after and retry_after.isdecimal() else 0
    leader_url = problem.get("leader_url")
    return Failure(
        problem["code"],
        str(problem.get("detail") or problem.get("title") or problem["code"]),
        retriable=problem.get("retriable") is True,
        definite=problem.get("definite") is not False,
        leader_url=leader_url.rstrip("/") if isinstance(leader_url, str) and leader_url else None,
        term=term if isinstance(term := problem.get("term"), int) else 0,
        retry_after_ms=_wait_ms(problem, seconds),
        problem=problem,
    )


def _wait_ms(problem: Mapping[str, Any], seconds: int) -> int:
    """A quota says exactly when it suffices again; other waits are guesses."""
    if problem["code"] == STOPPING:
        return 0
    exact = problem.get("retry_after_ms")
    if problem["code"] == QUOTA_EXCEEDED:
        return exact if type(exact) is int and exact >= 0 else seconds * 1_000
    return min(seconds, RETRY_AFTER_SECONDS_MAX) * 1_000


@dataclass
class AgentList:
    """The agents a client may ask, best first: those that answered last before those that failed last.

    Bounded: a cluster's size is not this client's choice, and a few dozen doors are enough.
    """

    urls: list[str]
    agents_max: int = 64
    _failures: dict[str, int] = field(default_factory=dict)

    def add(self, urls: Sequence[str]) -> None:
        for url in urls:
            cleaned = url.rstrip("/")
            if cleaned and cleaned not in self.urls and len(self.urls) < self.agents_max:
                self.urls.append(cleaned)

    def replace(self, urls: Sequence[str]) -> None:
        """These instead of those known so far."""
        self.urls.clear()
        self.add(urls)

    def in_order(self) -> list[str]:
        """Those with the fewest failures in a row first; equals in the order in which they became known."""
        return sorted(self.urls, key=lambda url: self._failures.get(url, 0))

    def failed(self, url: str) -> None:
        self._failures[url] = self._failures.get(url, 0) + 1

    def answered(self, url: str) -> None:
        self._failures.pop(url, None)


DEFAULT_AGENT = "http://127.0.0.1:7070"
UNIX = "unix://"
"""Before the path of a socket of this host, in place of a host and a port."""


def bootstrap_urls(bootstrap: str | Sequence[str] | None, default: str | None = None) -> list[str]:
    """The agents' URLs that a client was given: one, several, or several in one text with commas between.

    Raises ValueError for a text that is no URL of an agent, with an example.
    """
    texts = [bootstrap] if isinstance(bootstrap, str) else list(bootstrap if bootstrap is not None else [])
    if bootstrap is None:
        texts = [default or DEFAULT_AGENT]
    found = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    paths = [url for url in found if url.startswith("unix:") and not url.removeprefix("unix:").isdecimal()]
    urls = [url if "://" in url or url in paths else f"http://{url}" for url in found]
    if not urls:
        raise ValueError(f"at least one agent's URL is needed, for example {DEFAULT_AGENT}")
    for url in urls:
        scheme, _, rest = url.partition("://")
        if scheme == "unix" and rest.startswith("/") and rest.strip("/"):
            continue
        host = rest.partition("/")[0]
        if scheme not in ("http", "https") or not host or host.startswith(":") or set("@?# ") & set(rest):
            like = "unix:///run/shoal/http.sock" if url in paths else DEFAULT_AGENT
            raise ValueError(f"{url!r} is not the URL of an agent, which is like {like}")
    return urls
