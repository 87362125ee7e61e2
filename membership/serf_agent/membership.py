"""Gossip done by a Serf agent that already runs: the same interface as our own, over its RPC.

Law of this file: it translates. Members, events and queries come from the agent, what we say goes to it;
who is alive is the agent's verdict, but for agents behind living Serf agents (hosted_watch.py).

The agent tells of changes of members a second late or more (it coalesces them), so the list is fetched as
well, at short intervals. The node is the operator's: its tags that are not ours stay, and when we leave it
stays too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from shoal.membership.interface import (
    JoinError,
    KeyChange,
    Member,
    MemberEvent,
    PoolEvent,
    PoolQuery,
    QueryError,
)
from shoal.membership.serf.core import MAX_EVENT_BYTES
from shoal.membership.serf.keys import KeyReport
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf.snapshot import Clocks
from shoal.membership.serf_agent.agent_pool import AgentPool, QueryAnswers
from shoal.membership.serf_agent.hosted import (
    ALIVE_QUERY,
    LIVING,
    TAG_AGENT,
    TAG_LEFT,
    TAG_SINCE,
    agent_name,
    as_agent,
    as_agents,
    is_hosted,
    natural,
    node_names,
)
from shoal.membership.serf_agent.hosted_watch import ASK_INTERVAL_MS
from shoal.membership.serf_agent.rpc import CONNECT_TIMEOUT_S, Gap, RpcConnection, RpcError, SerfClient
from shoal.membership.serf_agent.rpc_wire import (
    AnswerRecord,
    KeyReply,
    MemberRecord,
    QueryRecord,
    Record,
)
from shoal.membership.wire.keyring import KeyringError, key_text, parse_key
from shoal.membership.wire.serf import encode_tags

logger = logging.getLogger(__name__)

E = TypeVar("E", MemberEvent, PoolEvent)

_AS_GONE = {"failed": ("failed", "left")}  # who is declared left after it failed went when it failed

REFRESH_INTERVAL_MS = 1_000
"""The list is fetched so often even when nothing is told; a reply of some 200 bytes a member."""

RETRY_INTERVAL_MS = 250
"""After a stream or a fetch that failed though the connection seems to be up."""

MAX_QUEUED = 256
"""Events and force-leaves on their way to the agent; more are dropped, and said."""


@dataclass(frozen=True, slots=True)
class SerfSettings:
    """Where the Serf agent's RPC listens, what it wants as a key, and who stands behind it. `owned_tags` are
    the names of all tags that an agent of ours may set: a predecessor's are removed."""

    name: str
    tags: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 7373
    auth_key: str = ""
    owned_tags: frozenset[str] = frozenset()
    refresh_interval_ms: int = REFRESH_INTERVAL_MS
    ask_interval_ms: int = ASK_INTERVAL_MS


class SerfMembership(AgentPool):
    """This process as a member of the pool in which a Serf agent takes part for it."""

    def __init__(
        self,
        settings: SerfSettings,
        *,
        rng: random.Random,
        on_event: Callable[[MemberEvent], None],
        on_user_event: Callable[[PoolEvent], None] | None = None,
        on_query: Callable[[PoolQuery], bytes | None] | None = None,
    ) -> None:
        super().__init__(
            settings.name, on_event, on_user_event, on_query, ask_interval_ms=settings.ask_interval_ms
        )
        self._settings = settings
        self._client = SerfClient(settings.host, settings.port, settings.auth_key, rng=rng)
        self.node = ""
        """The name of the Serf agent."""
        self._nodes: dict[str, Member] = {}
        self._members: tuple[Member, ...] = ()
        self.version = 0
        self._tags: dict[str, str] = {}
        self._since = ""
        self._news = asyncio.Event()
        self._tags_changed = asyncio.Event()
        self._fetching = asyncio.Lock()
        self._sends: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(MAX_QUEUED)
        self._tasks: list[asyncio.Task[None]] = []
        self.occupant: Member | None = None
        """The node as it was before us, if it spoke for an agent that had not left; perhaps this very one, of
        a former run or a copy of it."""

    # Life

    async def start(self) -> None:
        """Reach the Serf agent and read its list, without a word yet: the caller looks at `occupant`, then
        calls `take`. Raises RpcError."""
        await self._client.start()
        try:
            await self._fetch()
        except BaseException:
            await self._client.stop()
            raise
        before = self._nodes[self.node]
        if is_hosted(before) and not before.tags.get(TAG_LEFT):
            self.occupant = before

    async def take(self) -> None:
        """Speak through the node from now on. Raises RpcError, as when the tags are too long beside those
        that the node has already."""
        self._since = str(int(time.time() * 1_000))
        self._tags = self._complete(self._settings.tags)
        try:
            await self._tell_tags()
            await self._fetch()
        except BaseException:
            await self._client.stop()
            raise
        work = (
            self._listen(),
            self._keep_list(),
            self._keep_tags(),
            self._keep_sending(),
            self._watch.run(),
        )
        self._tasks = [asyncio.create_task(each, name="serf membership") for each in work]
        for task in self._tasks:
            task.add_done_callback(_look_at_end)

    async def stop(self) -> None:
        """Stop at once; the node stays in the pool. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._client.stop()

    async def leave(self) -> None:
        """Say that the agent behind the node has left; the node itself stays."""
        self._tags = {**self._tags, TAG_LEFT: "1"}
        try:
            await self._tell_tags()
        except RpcError as error:
            logger.warning("cannot announce by the Serf agent that this agent leaves: %s", error.detail)

    async def join(self, addresses: Sequence[tuple[str, int]]) -> int:
        """Have the Serf agent join each address; how many answered. Raises JoinError."""
        own = (self.address, self.port)
        others = [address for address in addresses if address != own]
        if not others:
            return 0
        try:
            reached = await self._client.join(others)
        except RpcError as error:
            raise JoinError(error.detail) from None
        self._news.set()
        return reached

    @property
    def is_in(self) -> bool:
        """Whether this node is taken and kept."""
        return bool(self._tasks)

    # What is known

    @property
    def address(self) -> str:
        return self._nodes[self.node].address

    @property
    def port(self) -> int:
        return self._nodes[self.node].port

    @property
    def clocks(self) -> Clocks:
        """The Serf agent keeps its own."""
        return Clocks()

    def members(self) -> tuple[Member, ...]:
        return self._members

    def _listed(self) -> Collection[Member]:
        return self._nodes.values()

    def _on_silence(self, agents: Collection[str]) -> None:
        self._show()

    async def _fetch(self) -> None:
        """The list as the Serf agent has it now; differences become events."""
        async with self._fetching:  # an older answer must not come after a newer one
            found = [node for node in await self._client.members() if node.status != "none"]
            now_ms = int(time.time() * 1_000)
            nodes = {node.name: _node(node, self._nodes.get(node.name), now_ms) for node in found}
            if self.node not in nodes:  # at the start, or the Serf agent came back under another name
                self.node = (await self._client.stats()).get("agent", {}).get("name", "")
                if self.node not in nodes:
                    raise RpcError("format", f"the Serf agent {self.node!r} is not in its own list")
            before, self._nodes = self._nodes, nodes
            if nodes != before:
                self._show()
                self._look_for_rival()

    def _show(self) -> None:
        """Make the list anew and tell what has changed in it."""
        before = {member.name: member for member in self._members}
        self._members = as_agents(self._nodes.values(), self._watch.silent)
        after = {member.name: member for member in self._members}
        events = [MemberEvent("reaped", before[name]) for name in before if name not in after]
        for name, member in after.items():
            kind = _change(before.get(name), member)
            if kind is not None:
                events.append(MemberEvent(kind, member))
        self.version += len(events)
        for event in events:
            self._call(self._on_event, event)

    def _call(self, listener: Callable[[E], None], event: E) -> None:
        """Soon and in order: a listener that raises breaks nothing of ours."""
        asyncio.get_running_loop().call_soon(listener, event)

    def _look_for_rival(self) -> None:
        """Another node that speaks for this very agent: a copy of its data directory, or its former node."""
        for node in self._nodes.values():
            if node.name == self.node or node.status not in LIVING or agent_name(node) != self.local_name:
                continue
            if self._is_conflict_news():
                logger.warning("two Serf nodes serve this agent: the other is %s", node.name)
                self._call(self._on_event, MemberEvent("conflict", as_agent(node)))

    async def _keep_list(self) -> None:
        while True:
            await _wait(self._news, self._settings.refresh_interval_ms)
            try:
                await self._fetch()
            except RpcError as error:
                logger.debug("cannot read the Serf agent's member list: %s", error)
                await asyncio.sleep(RETRY_INTERVAL_MS / 1_000)

    async def _keep_tags(self) -> None:
        """Beside the list: the Serf agent answers only when its news was told, which may take seconds."""
        last = ""
        while True:
            await _wait(self._tags_changed, self._settings.refresh_interval_ms)
            try:
                if not self._is_taken_over() and self._told_tags() != self._tags:
                    await self._tell_tags()
                    await self._fetch()
            except RpcError as error:
                level = logging.WARNING if error.reason == "refused" and str(error) != last else logging.DEBUG
                logger.log(level, "the Serf agent refused a request: %s", error.detail)
                last = str(error)
                await asyncio.sleep(RETRY_INTERVAL_MS / 1_000)

    def _is_taken_over(self) -> bool:
        """Another process speaks through our node, and began later: a contest of tags would only confuse the
        others, so the older one keeps silent, loudly."""
        if natural(self._told_tags().get(TAG_SINCE, "")) <= int(self._since):
            return False
        if self._is_conflict_news():
            logger.error(
                "the Serf agent %s serves agent %s now: give each agent a Serf agent of its own",
                self.node,
                self._told_tags().get(TAG_AGENT),
            )
        return True

    # What comes in

    async def _listen(self) -> None:
        while True:
            connection = await self._client.connection()
            try:
                stream = await connection.stream("*")
                self._news.set()  # for changes before the stream began
                async for record in stream:
                    await self._take_record(connection, record)
            except RpcError as error:
                logger.debug("no events from the Serf agent: %s", error)
            await asyncio.sleep(RETRY_INTERVAL_MS / 1_000)

    async def _take_record(self, connection: RpcConnection, record: Record | Gap) -> None:
        match record:
            case MemberRecord() | Gap():
                self._news.set()
            case PoolEvent():
                if self._on_user_event is not None:
                    self._call(self._on_user_event, record)
            case QueryRecord():
                answer = self._answer(record)
                if answer is not None:
                    await connection.respond(record.id, answer)

    def _answer(self, record: QueryRecord) -> bytes | None:
        if record.name == ALIVE_QUERY:
            return None if self._tags.get(TAG_LEFT) else self.local_name.encode()
        if self._on_query is None:
            return None
        try:
            return self._on_query(PoolQuery(record.name, record.payload))
        except Exception:
            logger.exception("cannot answer query %s", record.name)
            return None

    # What goes out

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace our tags; the node's others stay. Raises ValueError above 512 encoded bytes."""
        complete = self._complete(tags)
        encode_tags(complete)
        if TAG_LEFT in self._tags:
            complete[TAG_LEFT] = self._tags[TAG_LEFT]
        self._tags = complete
        self._tags_changed.set()

    def _complete(self, tags: Mapping[str, str]) -> dict[str, str]:
        return {**tags, TAG_AGENT: self.local_name, TAG_SINCE: self._since}

    def _told_tags(self) -> dict[str, str]:
        """Which of our tags the node shows."""
        owned = self._settings.owned_tags | self._tags.keys() | {TAG_AGENT, TAG_SINCE, TAG_LEFT}
        return {tag: value for tag, value in self._nodes[self.node].tags.items() if tag in owned}

    async def _tell_tags(self) -> None:
        stale = [tag for tag in self._told_tags() if tag not in self._tags]
        await self._client.tags(self._tags, delete=stale)

    def move(self, address: str) -> bool:
        return False

    def force_leave(self, name: str) -> None:
        if not any(member.name == name for member in self._members):
            raise KeyError(name)
        node = node_names(self._nodes.values()).get(name, name)
        self._send(lambda: self._client.force_leave(node))

    def send_user_event(self, name: str, payload: bytes) -> None:
        if len(name.encode()) + len(payload) > MAX_EVENT_BYTES:
            raise ValueError(f"a user event has at most {MAX_EVENT_BYTES} bytes of name and payload")
        self._send(lambda: self._client.event(name, payload))

    def _send(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            self._sends.put_nowait(work)
        except asyncio.QueueFull:
            logger.warning("dropping a message: the Serf agent is slow", extra={"repeats": True})

    async def _keep_sending(self) -> None:
        while True:
            work = await self._sends.get()
            try:
                await work()
            except RpcError as error:
                logger.warning("cannot send a message to the pool: %s", error.detail, extra={"repeats": True})
            self._news.set()

    async def keys(self) -> KeyReport:
        """The keys that members hold, as the Serf agent finds out; it does not tell their primary keys.
        Raises QueryError."""
        return await self._keys(self._client.list_keys())

    async def change_keys(self, change: KeyChange, key: bytes) -> KeyReport:
        return await self._keys(self._client.change_keys(change, key_text(key)))

    async def _keys(self, asking: Awaitable[KeyReply]) -> KeyReport:
        try:
            reply = await asking
            keys = {parse_key(key): count for key, count in reply.keys.items()}
        except RpcError as error:
            raise QueryError(error.detail) from None
        except KeyringError as error:
            raise QueryError(f"the Serf agent lists what is no key: {error}") from None
        agents = {node.name: agent_name(node) for node in self._nodes.values()}
        failures = {agents.get(node, node): said for node, said in reply.messages.items()}
        if reply.members > reply.answers:
            failures[f"{reply.members - reply.answers} members"] = "no answer"
        return KeyReport(reply.members, failures, keys)

    async def _put(self, request: QueryRequest, answers: QueryAnswers) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._client.connection()
            async for answer in await connection.query(request):
                if isinstance(answer, AnswerRecord):
                    answers.take(answer.kind, answer.sender, answer.payload)
                if answers.over.is_set():
                    return
        except RpcError as error:
            raise QueryError(error.detail) from None
        except TimeoutError:
            raise QueryError("there is no connection to the Serf agent") from None
        if connection.closed.is_set():
            raise QueryError(connection.fault.detail)


async def _wait(event: asyncio.Event, longest_ms: int) -> None:
    """Until it is set, or for so long; then it is clear again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest_ms / 1_000):
            await event.wait()
    event.clear()


def _look_at_end(task: asyncio.Task[None]) -> None:
    """These tasks end by being cancelled; anything else is a fault that must not stay unheard."""
    if not task.cancelled() and (fault := task.exception()) is not None:
        logger.error("gossip over the Serf agent failed; this is a bug", exc_info=fault)


def _node(found: Member, known: Member | None, now_ms: int) -> Member:
    same = known is not None and found.status in _AS_GONE.get(known.status, (known.status,))
    since_ms = known.since_ms if same and known is not None else now_ms
    return replace(found, since_ms=since_ms)


def _change(before: Member | None, after: Member) -> str | None:
    """The kind of event that leads from one to the other; None when they are equal."""
    if before == after:
        return None
    if before is not None and before.status == after.status:
        return "updated"
    kinds = {"alive": "joined", "failed": "failed", "left": "left"}
    if before is not None and before.status == "leaving" and after.status == "alive":
        return "updated"
    return kinds.get(after.status, "updated")
