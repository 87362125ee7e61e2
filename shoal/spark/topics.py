"""What agents say of topics: which there are, who serves their partitions, where logs begin and end.

It asks and repeats; what is read is decided elsewhere (plan.py). Documents are not trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from shoal.spark.http import (
    DEFAULT_RETRIES,
    POOL,
    Answer,
    ConnectionPool,
    MovedError,
    RetryPolicy,
    ask,
    document_of,
    persist,
)
from shoal.spark.options import Bound, Selection, SourceError, normal_url
from shoal.spark.plan import Offsets, PartitionState, States, resolve, times_of

UNKNOWN_CONFIRMATIONS: Final = 3
UNKNOWN_PAUSE_SECONDS: Final = 0.5
AGENTS_MAX: Final = 64  # doors remembered: those of the option first, then replicas as routes name them
ROUTES_SECONDS_MAX: Final = 10.0  # how old routes may be that a plan names; readers find the leader anyway
WAITED_TOPICS_MAX: Final = 16  # waited for at once, each with a connection; of more topics, these in turn
WAITED_PARTITIONS_MAX: Final = 256  # named in one request, whose line may have 8 KiB; of more, these in turn
PARTIAL_WAIT_SECONDS: Final = 0.25  # a turn, where not all partitions can be named at once
WAIT_GRACE_SECONDS: Final = 2.0  # above what was asked for: answers are late on a busy machine


class Directory:
    """Asks the agents named in the options, and later also those that their routes name."""

    def __init__(
        self,
        agents: tuple[str, ...],
        policy: RetryPolicy = DEFAULT_RETRIES,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        pool: ConnectionPool = POOL,
    ) -> None:
        self._agents = list(agents)
        self._policy = policy
        self._pause = pause
        self._clock = clock
        self._pool = pool
        self._routes: dict[str, tuple[float, dict[int, tuple[str, ...]]]] = {}
        self._turn = 0

    @property
    def agents(self) -> tuple[str, ...]:
        """Those that may be asked."""
        return tuple(self._agents)

    def topics(self, selection: Selection) -> tuple[str, ...]:
        """The names of the selected topics, as they are now."""
        if selection.named is not None:
            return selection.named
        what = f"topics that match {selection.pattern!r} cannot be listed at present"
        listed = persist(self._list, self._policy.plan_attempts, what, policy=self._policy, pause=self._pause)
        return tuple(topic for topic in listed if selection.matches(topic))

    def _list(self) -> list[str]:
        names: list[str] = []
        cursor = ""
        while True:
            path = "/v1/topics" + (f"?{urlencode({'cursor': cursor})}" if cursor else "")
            document, refusal = ask(self._pool, self._agents, path)
            try:
                page = [str(entry["name"]) for entry in document["topics"]]
            except (KeyError, TypeError) as error:
                raise SourceError(
                    f"an agent's answer to {path} is not understood ({refusal or error!r})"
                ) from None
            names += page
            following = str(document.get("next_cursor") or "")
            if not page or following <= cursor:
                return sorted(set(names))
            cursor = following

    def states(self, selection: Selection, *, patient: bool = False) -> dict[str, dict[int, PartitionState]]:
        """Partitions with their offsets and addresses; waits while one has no leader.

        `patient`: also for agents that cannot be reached, as a running query does. Raises SourceError.
        """
        return {
            topic: self._selected(selection, topic, self._state(topic, patient))
            for topic in self.topics(selection)
        }

    def existing_states(self, selection: Selection) -> dict[str, dict[int, PartitionState]]:
        """As states(), patient, without topics and partitions that are not there (any more)."""
        found = {}
        for topic in self.topics(selection):
            state = self._confirmed_state(topic)
            if state is not None:
                found[topic] = _present(selection, topic, state)
        return found

    def _confirmed_state(self, topic: str) -> dict[int, PartitionState] | None:
        """None when agents have said several times that there is no such topic: one that has just joined
        does not know all."""
        for attempt in range(UNKNOWN_CONFIRMATIONS):
            if attempt:
                self._pause(UNKNOWN_PAUSE_SECONDS)
            try:
                return self._state(topic, patient=True)
            except UnknownTopicError:
                self._routes.pop(topic, None)
        return None

    def _selected(
        self, selection: Selection, topic: str, state: Mapping[int, PartitionState]
    ) -> dict[int, PartitionState]:
        return {partition: state[partition] for partition in selection.partitions(topic, list(state))}

    def _state(self, topic: str, patient: bool) -> dict[int, PartitionState]:
        attempts = self._policy.attempts if patient else self._policy.plan_attempts
        return persist(
            lambda: self._fetch_state(topic),
            attempts,
            f"topic {topic!r} cannot be read at present",
            policy=self._policy,
            pause=self._pause,
            patient=patient,
        )

    def _fetch_state(self, topic: str) -> dict[int, PartitionState]:
        routes = self.routes(topic)
        path = _offsets_path(topic)
        document, refusal = ask(self._pool, self._agents, path)
        if refusal is not None:
            raise UnknownTopicError(f"unknown topic {topic!r}: {refusal}")
        return self._read_state(topic, routes, document)

    def _read_state(
        self, topic: str, routes: Mapping[int, tuple[str, ...]], document: Mapping[str, Any]
    ) -> dict[int, PartitionState]:
        try:
            return {
                int(entry["partition"]): PartitionState(
                    int(entry["log_start_offset"]),
                    int(entry["high_watermark"]),
                    routes.get(int(entry["partition"]), ()),
                )
                for entry in document["partitions"]
            }
        except (KeyError, TypeError, ValueError) as error:
            path = _offsets_path(topic)
            raise SourceError(f"an agent's answer to {path} is not understood ({error!r})") from error

    def routes(self, topic: str) -> dict[int, tuple[str, ...]]:
        """Addresses of each partition's replicas, the leader's first; some seconds old at most."""
        known = self._routes.get(topic)
        if known is None or self._clock() - known[0] > ROUTES_SECONDS_MAX:
            known = (self._clock(), fetch_routes(self._pool, topic, self._agents))
            self._routes[topic] = known
            self._learn(known[1])
        return known[1]

    def _learn(self, routes: Mapping[int, tuple[str, ...]]) -> None:
        for urls in routes.values():
            for url in urls:
                if url not in self._agents and len(self._agents) < AGENTS_MAX:
                    self._agents.append(url)

    def resolve(self, bound: Bound, name: str, states: States) -> Offsets:
        """A bound as numbers; agents are asked for offsets of times."""
        found: Offsets = {}
        wanted = times_of(bound, states)
        for topic, time_ms in sorted({(topic, at) for (topic, _), at in wanted.items()}):
            path = f"{_offsets_path(topic)}?{urlencode({'at': time_ms})}"
            document, refusal = persist(
                lambda path=path: ask(self._pool, self._agents, path),  # type: ignore[misc]
                self._policy.plan_attempts,
                f"offsets of topic {topic!r} cannot be found at present",
                policy=self._policy,
                pause=self._pause,
            )
            if refusal is not None:
                raise UnknownTopicError(f"unknown topic {topic!r}: {refusal}")
            for partition, offset in _offsets_at(path, document).items():
                place = (topic, partition)
                if wanted.get(place) == time_ms and offset < states[topic][partition].high_watermark:
                    found[place] = offset
        return resolve(bound, name, states, found)

    def first_since(self, time_ms: int, states: States) -> Offsets:
        """Of each partition the offset of its first record of that time or later, or its end."""
        return self.resolve(Bound(time_ms=time_ms), "starting", states)

    def wait(
        self, selection: Selection, after: Mapping[str, Mapping[int, int]], seconds: float
    ) -> dict[str, dict[int, PartitionState]]:
        """Wait until a partition's end has passed the offset given, at most so long; the states of the topics
        that were heard of (perhaps unchanged, perhaps none). Raises UnknownTopicError, SourceError.
        """
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
        heard: dict[str, dict[int, PartitionState]] = {}
        for number, answer in self._pool.first_of(requests, seconds + WAIT_GRACE_SECONDS):
            if isinstance(answer, Answer) and answer.status == 200:
                topic = chosen[number]
                routes = self._known_routes(topic)
                state = self._read_state(topic, routes, document_of(answer.body))
                heard[topic] = _present(selection, topic, state)
            else:  # another agent is asked the next time, and states() says what is wrong if it stays so
                self._agents.append(self._agents.pop(0))
                self._pause(self._policy.first_pause_seconds)
                return {}
        return heard

    def _known_routes(self, topic: str) -> dict[int, tuple[str, ...]]:
        """Routes for a plan: old ones do while nobody can be asked, since readers find the leader anyway."""
        try:
            return self.routes(topic)
        except (MovedError, SourceError):
            known = self._routes.get(topic)
            return {} if known is None else known[1]


def _present(
    selection: Selection, topic: str, state: Mapping[int, PartitionState]
) -> dict[int, PartitionState]:
    """The selected partitions among those that there are."""
    wanted = state if selection.assigned is None else selection.assigned[topic]
    return {partition: state[partition] for partition in sorted(wanted) if partition in state}


class UnknownTopicError(SourceError):
    """There is no such topic."""


def _offsets_path(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/offsets"


def _offsets_at(path: str, document: Mapping[str, Any]) -> dict[int, int]:
    try:
        return {int(entry["partition"]): int(entry["offset"]) for entry in document["partitions"]}
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"an agent's answer to {path} is not understood ({error!r})") from None


def fetch_routes(
    pool: ConnectionPool, topic: str, agents: list[str] | tuple[str, ...]
) -> dict[int, tuple[str, ...]]:
    """Addresses of each partition's replicas, the leader's first. Raises SourceError, MovedError."""
    document, refusal = ask(pool, agents, f"/v1/routes?{urlencode({'topic': topic})}")
    try:
        described = document["topics"].get(topic) if refusal is None else None
        if described is None:
            raise UnknownTopicError(f"unknown topic {topic!r}" + (f": {refusal}" if refusal else ""))
        return {int(entry["partition"]): _replica_urls(entry) for entry in described["partitions"]}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"an agent's answer to /v1/routes is not understood ({error!r})") from error


def _replica_urls(entry: dict[str, Any]) -> tuple[str, ...]:
    urls = [entry.get("leader_url"), *(replica.get("url") for replica in entry.get("replicas", ()))]
    return tuple(dict.fromkeys(normal_url(url) for url in urls if url))
