"""The table that a request names, where its rows are, and how another agent is asked for them."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote

from shoal.agent.http.core.context import Call
from shoal.agent.http.core.parameters import Query, choice
from shoal.agent.http.tables.keys import KEY_BASE64
from shoal.agent.interface import Topic
from shoal.errors import ShoalError
from shoal.format.hash_ranges import key_hash, partition_for


def find_table(call: Call) -> Topic:
    """The topic, which is a table. ShoalError unknown-topic, wrong-kind."""
    topic = call.context.broker.topic(call.arguments[0])
    if topic.kind != "table":
        raise ShoalError("wrong-kind", f"topic {topic.name} is a {topic.kind}, not a table")
    return topic


def table_path(topic: Topic) -> str:
    """Of its rows."""
    return f"/v1/tables/{quote(topic.name, safe='')}"


def owner_of(topic: Topic, key: bytes) -> int:
    """The partition that has the row of a key."""
    return partition_for(key_hash(key), topic.ranges)


def key_query(key: bytes) -> Query:
    """A key as agents tell it each other: no path of theirs has anything to normalise."""
    return {KEY_BASE64: b64encode(key).decode("ascii")}


def is_local(query: Query) -> bool:
    """Whether this agent's own replica may answer."""
    return choice(query, "consistency", "leader", ("leader", "local")) == "local"
