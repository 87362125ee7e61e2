"""Topics as agents describe them: their names, the addresses of their partitions, the ends of their logs.

It asks and repeats; plan.py decides which records are read. Documents are not trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from shoal.client.http.routes import PartitionRoute, RouteTable, TopicRoutes
from shoal.spark.options.bounds import Bound, Selection
from shoal.spark.options.errors import SourceError
from shoal.spark.options.values import normal_url
from shoal.spark.read.http import (
    DEFAULT_RETRIES,
    POOL,
    Answer,
    ConnectionPool,
    MovedError,
    Persistence,
    ask,
    document_of,
)
from shoal.spark.read.plan import LogEnds, Offsets, States, resolve, times_of

UNKNOWN_CONFIRMATIONS: Final = 3
UNKNOWN_PAUSE_SECONDS: Final = 0.5
AGENTS_MAX: Final = 64  # addresses remembered: those of the option first, then replicas as routes name them
ROUTES_SECONDS_MAX: Final = 10.0  # how old routes may be that a plan names; readers find the leader anyway
WAITED_TOPICS_MAX: Final = 16  # waited for at once, each with a connection; more topics take turns
WAITED_PARTITIONS_MAX: Final = 256  # named in one request, whose line may have 8 KiB; more take turns
PARTIAL_WAIT_SECONDS: Final = 0.25  # a turn, where not all partitions can be named at once
WAIT_GRACE_SECONDS: Final = 2.0  # above the wait asked for: answers are late on a busy machine

T = TypeVar("T")
Addresses = dict[int, tuple[str, ...]]
"""Of each partition's replicas, the leader's first."""


class Directory:
    """Asks the agents named in the options, and later also those that their routes name."""

    def __init__(
        self,
        agents: tuple[str, ...],
        policy: Persistence = DEFAULT_RETRIES,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        pool: ConnectionPool = POOL,
    ) -> None:
        self._agents = list(agents)
        self._policy = policy
        self._pause = pause
        self._clock = clock
        self._pool = pool
        self._routes: dict[str, tuple[float, Addresses]] = {}
        self._turn = 0

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that may be asked."""
        return tuple(self._agents)

    def topics(self, selection: Selection) -> tuple[str, ...]:
        """The names of the selected topics at present."""
        if selection.named is not None:
            return selection.named
        what = f"topics that match {selection.pattern!r} cannot be listed at present"
        listed = self._persist(self._list, what)
        return tuple(topic for topic in listed if selection.matches(topic))

    def _persist(self, work: Callable[[], T], what: str, *, planning: bool = True) -> T:
        return self._policy.persist(lambda _: work(), what, self._pause, planning=planning)

    def _list(self) -> list[str]:
        names: list[str] = []
        cursor = ""
        while True:
            path = "/v1/topics" + (f"?{urlencode({'cursor': cursor})}" if cursor else "")
            document, refusal = ask(self._pool, self._agents, path)
            with understood(path, refusal):
                page = [str(entry["name"]) for entry in document["topics"]]
            names += page
            following = str(document.get("next_cursor") or "")
            if not page or following <= cursor:
                return sorted(set(names))
            cursor = following

    def states(self, selection: Selection) -> dict[str, dict[int, LogEnds]]:
        """Partitions with their offsets and addresses; waits while one has no leader. Raises SourceError."""
        found = {}
        for topic in self.topics(selection):
            state = self._state(topic, planning=True)
            wanted = selection.partitions(topic, list(state))
            found[topic] = {partition: state[partition] for partition in wanted}
        return found

    def existing_states(self, selection: Selection) -> dict[str, dict[int, LogEnds]]:
        """As states(), without topics and partitions that do not exist (any more). Also waits for agents that
        cannot be reached, as a running query should."""
        found = {}
        for topic in self.topics(selection):
            state = self._confirmed_state(topic)
            if state is not None:
                found[topic] = _present(selection, topic, state)
        return found

    def _confirmed_state(self, topic: str) -> dict[int, LogEnds] | None:
        """None once agents have denied the topic several times: an agent that has just joined does not know
        all topics."""
        for attempt in range(UNKNOWN_CONFIRMATIONS):
            if attempt:
                self._pause(UNKNOWN_PAUSE_SECONDS)
            try:
                return self._state(topic, planning=False)
            except UnknownTopicError:
                self._routes.pop(topic, None)
        return None

    def _state(self, topic: str, *, planning: bool) -> dict[int, LogEnds]:
        what = f"topic {topic!r} cannot be read at present"
        return self._persist(lambda: self._fetch_state(topic), what, planning=planning)

    def _fetch_state(self, topic: str) -> dict[int, LogEnds]:
        routes = self.routes(topic)
        path = _offsets_path(topic)
        document, refusal = ask(self._pool, self._agents, path)
        if refusal is not None:
            raise UnknownTopicError(f"unknown topic {topic!r}: {refusal}")
        return self._read_state(topic, routes, document)

    def _read_state(self, topic: str, routes: Addresses, document: Mapping[str, Any]) -> dict[int, LogEnds]:
        with understood(_offsets_path(topic)):
            return {
                int(entry["partition"]): LogEnds(
                    int(entry["log_start_offset"]),
                    int(entry["high_watermark"]),
                    routes.get(int(entry["partition"]), ()),
                )
                for entry in document["partitions"]
            }

    def routes(self, topic: str) -> Addresses:
        """The addresses of a topic's partitions; some seconds old at most."""
        known = self._routes.get(topic)
        if known is None or self._clock() - known[0] > ROUTES_SECONDS_MAX:
            routes = fetch_routes(self._pool, topic, self._agents)
            addresses = {route.partition: replica_urls(route) for route in routes.partitions}
            known = self._routes[topic] = (self._clock(), addresses)
            named = dict.fromkeys((*self._agents, *(url for urls in addresses.values() for url in urls)))
            self._agents = list(named)[: max(AGENTS_MAX, len(self._agents))]
        return known[1]

    def resolve(self, bound: Bound, name: str, states: States) -> Offsets:
        """A bound as numbers; asks agents for the offsets of times."""
        found: Offsets = {}
        wanted = times_of(bound, states)
        for topic, time_ms in sorted({(topic, at) for (topic, _), at in wanted.items()}):
            path = f"{_offsets_path(topic)}?{urlencode({'at': time_ms})}"
            what = f"offsets of topic {topic!r} cannot be found at present"
            document, refusal = self._persist(partial(ask, self._pool, self._agents, path), what)
            if refusal is not None:
                raise UnknownTopicError(f"unknown topic {topic!r}: {refusal}")
            with understood(path):
                offsets = {int(entry["partition"]): int(entry["offset"]) for entry in document["partitions"]}
            for partition, offset in offsets.items():
                place = (topic, partition)
                if wanted.get(place) == time_ms and offset < states[topic][partition].high_watermark:
                    found[place] = offset
        return resolve(bound, name, states, found)

    def first_since(self, time_ms: int, states: States) -> Offsets:
        """Of each partition the offset of its first record of that time or later, or its end."""
        return self.resolve(Bound(time_ms=time_ms), "starting", states)

    def wait(
        self, selection: Selection, after: Mapping[str, Mapping[int, int]], seconds: float
    ) -> dict[str, dict[int, LogEnds]]:
        """Wait until a partition's end has passed the given offset, at most `seconds`. Returns the states of
        the topics that answered, perhaps unchanged, perhaps none. Raises UnknownTopicError, SourceError."""
        names = sorted(after)
        first = self._turn % len(names)
        chosen = (names[first:] + names[:first])[:WAITED_TOPICS_MAX]
        self._turn += len(chosen)
        requests = []
        for topic in chosen:
            named = sorted(after[topic].items())
            if len(named) > WAITED_PARTITIONS_MAX:
                begin = self._turn * WAITED_PARTITIONS_MAX % len(named)
                named = sorted((named[begin:] + named[:begin])[:WAITED_PARTITIONS_MAX])
                seconds = min(seconds, PARTIAL_WAIT_SECONDS)
            places = ",".join(f"{partition}:{offset}" for partition, offset in named)
            query = f"after={places}&wait={max(1, int(seconds * 1000))}ms"
            requests.append((self._agents[0], f"{_offsets_path(topic)}?{query}"))
        heard: dict[str, dict[int, LogEnds]] = {}
        for number, answer in self._pool.first_of(requests, seconds + WAIT_GRACE_SECONDS):
            if isinstance(answer, Answer) and answer.status == 200:
                topic = chosen[number]
                try:
                    routes = self.routes(topic)
                except (MovedError, SourceError):  # old ones do: readers find the leader anyway
                    routes = self._routes.get(topic, (0.0, {}))[1]
                state = self._read_state(topic, routes, document_of(answer.body))
                heard[topic] = _present(selection, topic, state)
            else:  # the next wait asks another agent; existing_states() names a lasting fault
                self._agents.append(self._agents.pop(0))
                self._pause(self._policy.first_pause_seconds)
                return {}
        return heard


def _present(selection: Selection, topic: str, state: Mapping[int, LogEnds]) -> dict[int, LogEnds]:
    """The selected partitions among those that exist."""
    wanted = state if selection.assigned is None else selection.assigned[topic]
    return {partition: state[partition] for partition in sorted(wanted) if partition in state}


class UnknownTopicError(SourceError):
    """There is no such topic."""


def _offsets_path(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/offsets"


@contextmanager
def understood(path: str, refusal: str | None = None) -> Iterator[None]:
    """Read an agent's answer to `path`. Raises SourceError for one that has another form."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"an agent's answer to {path} is not understood ({refusal or error!r})") from error


def fetch_routes(pool: ConnectionPool, topic: str, agents: Sequence[str], advice: str = "") -> TopicRoutes:
    """A topic's partitions, their leaders and replicas. Raises MovedError, and SourceError, with `advice` for
    an unknown topic."""
    document, refusal = ask(pool, agents, f"/v1/routes?{urlencode({'topic': topic})}")
    table = RouteTable()
    if refusal is None:
        with understood("/v1/routes"):
            table.learn(document)
    routes = table.topic(topic)
    if routes is None or not routes.partitions:
        raise UnknownTopicError(": ".join(filter(None, (f"unknown topic {topic!r}", advice, refusal))))
    return routes


def replica_urls(route: PartitionRoute) -> tuple[str, ...]:
    """The addresses of a partition's replicas, the leader's first. Raises SourceError."""
    urls = (route.leader_url, *route.replica_urls)
    return tuple(dict.fromkeys(normal_url(url) for url in urls if url))


def find_leader(pool: ConnectionPool, topic: str, partition: int, agents: Sequence[str]) -> str | None:
    """The address of a partition's leader, or of another replica while it has none. Raises MovedError and
    SourceError."""
    route = fetch_routes(pool, topic, agents).get(partition)
    return next(iter(replica_urls(route)), None) if route is not None else None
