"""Requests to a cluster as a whole: members, topics, keys, joining, leaving, recovering.

Law of this file: HTTP and JSON only. Records and Arrow are the matter of async_client.py, whose client can
all of this too: a command that asks one question starts without them.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, Self, TypedDict, Unpack
from urllib.parse import quote

from shoal.client.http.discovery import urls_by_mdns, urls_of_seeds
from shoal.client.http.group_path import group_path
from shoal.client.http.requests import Call, ClientConfig, Cluster, topic_path
from shoal.client.http.routes import bootstrap_urls
from shoal.client.principal_calls import PrincipalCalls
from shoal.credentials import CredentialOptions, credentials_of
from shoal.errors import ShoalError
from shoal.unpicklable import LiveObject


class Retention(TypedDict, total=False):
    """The kept part of a partition: batches so young ("7d"), and at least so many bytes. None: no limit."""

    age: str | None
    bytes: int | None
    hold_for_groups: bool
    acknowledged: bool


class Segment(TypedDict, total=False):
    """How large ("bytes") and how old ("1d") a segment file grows: retention drops whole ones."""

    bytes: int
    age: str | None


class ChangeableOptions(TypedDict, total=False):
    """Settings of a topic that may change."""

    replication_factor: int | Literal["all"]
    retention: Retention
    segment: Segment


class TopicOptions(ChangeableOptions, total=False):
    """Settings of a topic; those left out have the agents' defaults."""

    kind: str
    partitions: int
    fsync: bool


class GroupRetry(TypedDict, total=False):
    """The delay before a message comes again: `first` ("1s"), times `factor` with each attempt, at `most`
    ("5m")."""

    first: str
    factor: int
    most: str


class ChangeableGroupOptions(TypedDict, total=False):
    """Settings of a consumer group that may change."""

    visibility: str
    """How long a message is in one consumer's hands alone, without an extension."""
    max_attempts: int | None
    """After so many a message is dead; None: never."""
    retry: GroupRetry
    dead: Literal["letter", "stop", "drop"]
    session: str
    """An exclusive group's consumer that is silent for so long loses its partitions."""
    paused: bool


class GroupOptions(ChangeableGroupOptions, total=False):
    """Settings of a consumer group; those left out have the agents' defaults."""

    mode: Literal["shared", "exclusive", "key-ordered"]
    start: str
    """earliest, latest, or @ and a time."""


class ClientOptions(CredentialOptions, total=False):
    """How a client finds agents where no URL is known: by gossip `seeds` ("host:7946"), or by `mdns`, a
    cluster's name (True: the only one there is). A sealed pool needs one of its keys as `gossip_key` in
    base64, a labelled one its label."""

    seeds: Sequence[str] | None
    mdns: str | bool | None
    gossip_key: str | None
    gossip_label: str


class AdminClient(PrincipalCalls, LiveObject):
    """A client of one cluster for questions and settings: AsyncClient without records.

    `bootstrap`: one or more agents' URLs (none: what SHOAL_AGENT names, or http://127.0.0.1:7070), or an
    option of ClientOptions. Further agents are learnt from these, so that any may die later. A `token`, `ca`,
    `certificate` and `key` are those of CredentialOptions; ClientError tells of one that does not fit. All
    methods raise ShoalError (an agent refused; .code says why) or Unreachable (no agent answered).
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        config: ClientConfig | None = None,
        *,
        seeds: Sequence[str] | None = None,
        mdns: str | bool | None = None,
        gossip_key: str | None = None,
        gossip_label: str = "",
        **credentials: Unpack[CredentialOptions],
    ) -> None:
        if sum(way is not None for way in (bootstrap, seeds, mdns)) > 1:
            raise ValueError("name agents in one way: bootstrap, seeds or mdns")
        self._seeds, self._mdns = seeds, mdns
        self._gossip_key, self._gossip_label = gossip_key, gossip_label
        self._cluster = Cluster(
            bootstrap_urls(bootstrap, os.environ.get("SHOAL_AGENT")),
            config or ClientConfig(),
            credentials_of(os.environ, **credentials),
        )

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """The beginning of `async with`, for cells of a notebook; `close` is its end. Idempotent."""
        if self._cluster.is_open:
            return self
        key, label = self._gossip_key, self._gossip_label
        if self._seeds is not None:
            urls = await urls_of_seeds(self._seeds, gossip_key=key, gossip_label=label)
            self._cluster.agents.replace(urls)
        elif self._mdns:
            cluster = self._mdns if isinstance(self._mdns, str) else None
            urls = await urls_by_mdns(cluster, gossip_key=key, gossip_label=label)
            self._cluster.agents.replace(urls)
        await self._cluster.open()
        return self

    async def close(self) -> None:
        """Close the connections. Idempotent; `open` opens it again."""
        await self._cluster.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._cluster.agents.in_order()[:3])}>"

    @property
    def asked(self) -> str:
        """The URL of the agent that answers questions: the first one that is not down."""
        return self._cluster.agents.in_order()[0]

    @property
    def retries(self) -> int:
        """Attempts that were repeated, over everything this client did."""
        return self._cluster.retries

    @property
    def leader_changes(self) -> int:
        """How often this client saw a partition move to another leader."""
        return self._cluster.routes.leader_changes

    async def agent(self) -> dict[str, Any]:
        """GET /v1/agent of the first agent that answers."""
        return await self._get("/v1/agent")

    async def ready(self) -> bool:
        """Whether the first agent that answers can serve: joined, catalog caught up, disk writable."""
        return await self.unready_reason() is None

    async def unready_reason(self) -> str | None:
        """Why the first agent that answers cannot serve; None when it can."""
        try:
            await self._cluster.anywhere(Call("GET", "/readyz"))
        except ShoalError as error:
            if error.code in ("not-ready", "stopping"):
                return error.detail
            raise
        return None

    async def members(self) -> dict[str, Any]:
        """GET /v1/members. The agents among them are asked too, from now on, where others do not answer."""
        document = await self._get("/v1/members")
        self._cluster.learn_members(document)
        return document

    async def routes(self, topic: str | None = None) -> dict[str, Any]:
        """GET /v1/routes."""
        return await self._get("/v1/routes", {} if topic is None else {"topic": topic})

    async def topics(self) -> list[dict[str, Any]]:
        """Every topic, all pages of GET /v1/topics."""
        found: list[dict[str, Any]] = []
        params: dict[str, str] = {}
        while True:
            document = await self._get("/v1/topics", params)
            found.extend(document.get("topics", []))
            if not document.get("next_cursor"):
                return found
            params = {"cursor": str(document["next_cursor"])}

    async def topic_offsets(self, topic: str, at: str | None = None) -> list[dict[str, Any]]:
        """GET /v1/topics/{topic}/offsets, by partition; with `at` each has the `offset` of that time."""
        document = await self._get(f"{topic_path(topic)}/offsets", {} if at is None else {"at": at})
        return sorted(document["partitions"], key=lambda entry: entry["partition"])

    async def topic(self, name: str) -> dict[str, Any]:
        """GET /v1/topics/{topic}: settings, partitions, replicas, offsets."""
        return await self._get(topic_path(name))

    async def create_topic(
        self, name: str, settings: Mapping[str, Any] | None = None, **named: Unpack[TopicOptions]
    ) -> tuple[bool, dict[str, Any]]:
        """PUT /v1/topics/{topic}; False beside the topic if somebody else had made it, with equal settings.
        They may be named: `create_topic("orders", partitions=6, retention={"age": "7d"})`."""
        body = {**(settings or {}), **named}
        call = _call("PUT", topic_path(name), body or None)
        # An attempt whose answer was lost may have made it: the next one is told so by the key.
        call = call._replace(headers={**call.headers, "Idempotency-Key": secrets.token_hex(16)})
        answer = await self._cluster.anywhere(call, retry=True)
        return answer.status == 201, answer.document()

    async def topic_settings(self, name: str) -> dict[str, Any]:
        """GET /v1/topics/{topic}/settings: each setting with its default, and their `version`."""
        return await self._get(f"{topic_path(name)}/settings")

    async def alter_topic(
        self, name: str, *, if_version: str | None = None, **named: Unpack[ChangeableOptions]
    ) -> dict[str, Any]:
        """PATCH /v1/topics/{topic}: the topic with these settings changed, the others as they were. With
        `if_version` only if the settings are of that `settings_version`: else settings-changed."""
        params = {} if if_version is None else {"if_version": if_version}
        call = _call("PATCH", topic_path(name), dict(named))._replace(params=params)
        return (await self._cluster.anywhere(call, retry=True)).document()

    async def trim(self, topic: str, partition: int, before: int) -> dict[str, Any]:
        """POST .../trim: drop whole segments whose records all lie below offset `before`. The answer has the
        new `log_start_offset`."""
        return await self._ask("POST", f"{topic_path(topic)}/partitions/{partition}/trim", {"before": before})

    async def delete_topic(self, name: str) -> None:
        """DELETE /v1/topics/{topic}: its records are gone for good. Raises unknown-topic if it was not there.

        It is looked up first: then, that it is unknown to the deletion can only mean that an earlier
        attempt was carried out and its answer lost (aiohttp repeats a DELETE by itself when a connection
        breaks).
        """
        await self.topic(name)
        try:
            await self._cluster.anywhere(Call("DELETE", topic_path(name)), retry=True)
        except ShoalError as error:
            if error.code != "unknown-topic":
                raise

    async def groups(self, topic: str) -> list[dict[str, Any]]:
        """GET /v1/topics/{topic}/groups: the topic's consumer groups, with mode and lag."""
        return list((await self._get(f"{topic_path(topic)}/groups")).get("groups", []))

    async def group(self, topic: str, name: str) -> dict[str, Any]:
        """GET .../groups/{group}: settings, and each partition's position, lag and consumers."""
        return await self._get(group_path(topic, name))

    async def create_group(
        self, topic: str, name: str, **named: Unpack[GroupOptions]
    ) -> tuple[bool, dict[str, Any]]:
        """PUT .../groups/{group}; False beside the group if it was there, with equal settings."""
        call = _call("PUT", group_path(topic, name), dict(named) or None)
        answer = await self._cluster.anywhere(call, retry=True)
        return answer.status == 201, answer.document()

    async def change_group(
        self, topic: str, name: str, *, if_version: str | None = None, **named: Unpack[ChangeableGroupOptions]
    ) -> dict[str, Any]:
        """PATCH .../groups/{group}: the group with these settings changed, the others as they were. With
        `if_version` only if the settings are of that `settings_version`: else settings-changed."""
        params = {} if if_version is None else {"if_version": if_version}
        call = _call("PATCH", group_path(topic, name), dict(named))._replace(params=params)
        return (await self._cluster.anywhere(call, retry=True)).document()

    async def delete_group(self, topic: str, name: str) -> None:
        """DELETE .../groups/{group}: its positions are gone, the dead letters' topic stays. Raises
        unknown-group if it was not there; looked up first, for the reason of `delete_topic`."""
        await self.group(topic, name)
        try:
            await self._cluster.anywhere(Call("DELETE", group_path(topic, name)), retry=True)
        except ShoalError as error:
            if error.code != "unknown-group":
                raise

    async def seek_group(self, topic: str, name: str, to: str | Mapping[int, int]) -> list[dict[str, Any]]:
        """POST .../groups/{group}/seek: go on from earliest, latest, @TIME, or offsets by partition. Returns
        the new place of each partition that was sought. Receipts of before are void."""
        place = to if isinstance(to, str) else {str(partition): offset for partition, offset in to.items()}
        answer = await self._ask("POST", f"{group_path(topic, name)}/seek", {"to": place})
        return list(answer.get("partitions", []))

    async def redrive_group(self, topic: str, name: str, limit: int | None = None) -> dict[str, Any]:
        """POST .../groups/{group}/redrive: dead letters become messages again. How many: `redriven`, of which
        `copied` were appended anew, since retention had taken the originals.
        `kept` letters cannot come again.

        With a `limit`, a redrive whose answer was lost is not repeated: a second one brings the next letters.
        """
        body = {} if limit is None else {"limit": limit}
        call = _call("POST", f"{group_path(topic, name)}/redrive", body)
        answer = await self._cluster.anywhere(call, retry=True, only_once=limit is not None)
        return answer.document()

    async def decide_stopped(
        self,
        topic: str,
        name: str,
        partition: int,
        offset: int,
        action: str,
    ) -> bool:
        """POST .../groups/{group}/decide: the fate of a message that stopped its group (`dead` is stop).
        False: it was not stopped."""
        body = {"partition": partition, "offset": offset, "action": action}
        return bool((await self._ask("POST", f"{group_path(topic, name)}/decide", body))["done"])

    async def kept_topics(self) -> list[dict[str, Any]]:
        """GET /v1/kept-topics: topics that the catalog does not know, and whose replicas live agents keep."""
        return list((await self.kept_report()).get("topics", []))

    async def kept_report(self) -> dict[str, Any]:
        """GET /v1/kept-topics as it is: `topics`, and the `silent` agents, which did not say."""
        return await self._get("/v1/kept-topics")

    async def adopt_topic(self, kept: str, name: str | None = None) -> dict[str, Any]:
        """POST /v1/kept-topics/{kept}/adopt, by the name it had or by its id: the catalog knows it again,
        under another name if one is given. Returns the topic."""
        path = f"/v1/kept-topics/{quote(kept, safe='')}/adopt"
        return await self._ask("POST", path, {} if name is None else {"name": name})

    async def join(self, addresses: Sequence[str]) -> dict[str, Any]:
        """POST /v1/agent/join: the first bootstrap agent contacts the gossip addresses ("host:port")."""
        return await self._ask_first("POST", "/v1/agent/join", {"addresses": list(addresses)})

    async def leave(self) -> None:
        """POST /v1/agent/leave: the first bootstrap agent hands over and stops. No other is asked instead."""
        await self._cluster.at_agent(Call("POST", "/v1/agent/leave"))

    async def drain(self, *, undo: bool = False) -> dict[str, Any]:
        """POST or DELETE /v1/agent/drain at the first bootstrap agent: hold and lead nothing, or take that
        back. The answer says how far it is."""
        return await self._ask_first("DELETE" if undo else "POST", "/v1/agent/drain")

    async def drain_status(self) -> dict[str, Any]:
        """GET /v1/agent/drain at the first bootstrap agent."""
        return await self._ask_first("GET", "/v1/agent/drain")

    async def level(self) -> dict[str, Any]:
        """GET /v1/cluster/level: the cluster's feature level, and which members understand which."""
        return await self._of_levels(self._get("/v1/cluster/level"))

    async def raise_level(self, level: int | None = None, without: Sequence[str] = ()) -> dict[str, Any]:
        """POST /v1/cluster/level: to this level, or to the highest that every member understands. `without`:
        agents that are gone for good, by id or name."""
        body: dict[str, Any] = {} if level is None else {"level": level}
        if without:
            body["without"] = list(without)
        return await self._of_levels(self._ask("POST", "/v1/cluster/level", body))

    async def _of_levels(self, asked: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """The answer. ShoalError unknown-route, in words, of an agent of before feature levels."""
        try:
            return await asked
        except ShoalError as error:
            if error.code != "unknown-route":
                raise
            detail = (
                f"{self.asked} is an agent of a version before feature levels: while it works in its cluster,"
                " that is at level 1, and rises once every agent is upgraded; ask an upgraded one what else"
                " it waits for"
            )
            raise ShoalError(error.code, detail) from error

    async def recovery_preview(self, topic: str, partition: int) -> dict[str, Any]:
        """GET /v1/agent/recover at the first bootstrap agent: what forced recovery would do there."""
        query = {"topic": topic, "partition": str(partition)}
        call = Call("GET", "/v1/agent/recover", query)
        return (await self._cluster.at_agent(call)).document()

    async def recover_partition(self, topic: str, partition: int) -> dict[str, Any]:
        """POST /v1/agent/recover at the first bootstrap agent: its replica goes on alone. Records that
        only the lost replicas had are lost for ever."""
        body = {"topic": topic, "partition": partition, "accept_data_loss": True}
        return await self._ask_first("POST", "/v1/agent/recover", body)

    async def force_leave(self, member: str) -> None:
        """POST /v1/members/{member}/force-leave: a failed member counts as left."""
        await self._cluster.anywhere(Call("POST", f"/v1/members/{quote(member, safe='')}/force-leave"))

    async def gossip_keys(self) -> dict[str, Any]:
        """GET /v1/keys: fingerprints of the gossip keys, and how many members hold and use each."""
        return await self._get("/v1/keys")

    async def change_gossip_keys(self, change: str, key: str, *, force: bool = False) -> dict[str, Any]:
        """POST /v1/keys/{change}: `install`, `use` or `remove` a key on every member. Asks the first
        bootstrap agent, once.
        """
        return await self._ask_first("POST", f"/v1/keys/{change}", {"key": key, "force": force})

    async def _ask(self, method: str, path: str, document: dict[str, Any]) -> dict[str, Any]:
        call = _call(method, path, document)
        return (await self._cluster.anywhere(call, retry=True)).document()

    async def _ask_first(
        self, method: str, path: str, document: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return (await self._cluster.at_agent(_call(method, path, document))).document()

    async def _get(self, path: str, params: dict[str, str] | None = None) -> dict[str, Any]:
        return (await self._cluster.anywhere(Call("GET", path, params or {}))).document()


def _call(method: str, path: str, document: dict[str, Any] | None) -> Call:
    if document is None:
        return Call(method, path)
    return Call(
        method, path, headers={"Content-Type": "application/json"}, body=json.dumps(document).encode()
    )
