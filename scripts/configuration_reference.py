"""Writes docs/configuration.md: every flag, TOML key and SHOAL_ variable. Run it after changing a setting.

Law of this file: names, variables, flags, units and defaults are read from the code. Only words stand here:
what a setting means and when a new value takes effect. A setting without words is an error, and so are words
without a setting.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shoal.agent.cli.agent import agent
from shoal.agent.cli.topic import create
from shoal.agent.cli.topic_settings import OPTIONS
from shoal.agent.config import (
    DEFAULT_GOSSIP_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_SERF_RPC_PORT,
)
from shoal.agent.config import SETTINGS as AGENT_SETTINGS
from shoal.agent.interface import (
    MAX_PARTITIONS,
    MAX_REPLICATION_FACTOR,
    MAX_SEGMENT_BYTES,
    MIN_SEGMENT_BYTES,
)
from shoal.agent.settings import Setting
from shoal.agent.topics.settings import TopicSettings
from shoal.client.http.requests import ClientConfig
from shoal.client.http.routes import RetryPolicy
from shoal.client.produce.batcher import BatchingConfig
from shoal.format.timestamps import DURATION_UNITS_MS

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
MIB = 1 << 20
CREATION = "creation"
CHANGE = "5 s"
STEPS = "replica by replica"


class Words(NamedTuple):
    """What the code does not say of a setting. `default` is for those whose default is computed."""

    meaning: str
    default: str = ""


class TopicWords(NamedTuple):
    """The same of a topic's setting, with the time at which a change counts."""

    effect: str
    meaning: str


SETTINGS: Mapping[str, Words] = {
    "data": Words("The data directory. Required."),
    "bind": Words("IP address to listen on."),
    "advertise": Words(
        "Address or DNS name that other agents and clients use. A name is looked up for each connection."
        " Required with `0.0.0.0`.",
        "`bind`",
    ),
    "http_port": Words(
        "HTTP port, TCP. The default steps up to the next free port; an explicit port must be free.",
        f"{DEFAULT_HTTP_PORT}, or the port of the last run",
    ),
    "http_socket": Words(
        "Path of a unix socket that serves HTTP too, for the user and group of the agent. The port stays:"
        " agents need it.",
        "none",
    ),
    "allowed_hosts": Words(
        "Further DNS names that a request's `Host` may have: a reverse proxy's, a service's. Addresses,"
        " `localhost`, the host's name and `advertise` are always allowed.",
        "none",
    ),
    "cors_origins": Words(
        "Origins, such as `https://app.example.com`, whose web pages may use this agent.", "none"
    ),
    "insecure": Words(
        "Start although others reach this agent and it has no TLS, no authentication or no gossip key."
        " It is told [everywhere](security.md#posture)."
    ),
    "authentication": Words(
        "Whether requests need credentials: `on`, `off`, or `auto`: beyond loopback, without `insecure`."
    ),
    "bootstrap_token_hash": Words(
        "SHA-256 of a token, 64 hex digits. The token is an administrator's until there is another, and never"
        " again. The same at every agent.",
        "none",
    ),
    "jwt_issuer": Words(
        "Issuer of the JWTs that are taken: their `iss`, exactly. With it `jwt_audience` and `jwt_keys` are"
        " needed. The same at every agent, like all of these.",
        "none: no JWTs",
    ),
    "jwt_audience": Words("Audience that they have to name in `aud`: this cluster.", "none"),
    "jwt_keys": Words(
        "The issuer's public keys (JWKS): a file, or the URL that the issuer calls `jwks_uri`."
        " [How they are read](security.md#jwts).",
        "none",
    ),
    "jwt_principal_claim": Words("Claim with the principal's name."),
    "jwt_roles_claim": Words("Claim with further roles, as a list or a text with blanks.", "none"),
    "tls_cert": Words(
        "PEM file with this agent's certificate and those between it and the authority. With it the HTTP port"
        " speaks TLS alone.",
        "none",
    ),
    "tls_key": Words("PEM file with the key of that certificate, without a passphrase.", "none"),
    "tls_ca": Words(
        "PEM file with the authorities that sign the certificates of agents and clients. All three files are"
        " looked at every 10 s, and at SIGHUP.",
        "none",
    ),
    "tls_clients": Words(
        "Certificates of clients: `none` are identities, `optional`, or `required`. Agents always need one."
    ),
    "tls_minimum": Words("Oldest version of TLS: `1.3` or `1.2`."),
    "tls_agent_name": Words(
        "URI name of the certificates of agents, and of no others. `*` stands for any characters but `/`.",
        "`shoal://CLUSTER/agent`",
    ),
    "hsts": Words(
        "So long browsers reach this host's name, and names below it, by TLS alone, at every port"
        " (`Strict-Transport-Security`). `0` lets them forget it. Told over TLS only."
    ),
    "gossip_port": Words(
        "Gossip port, UDP and TCP. Same rule.", f"{DEFAULT_GOSSIP_PORT}, or the port of the last run"
    ),
    "cluster": Words("Cluster name. Agents with different names never meet."),
    "name": Words("Name of the agent in lists and logs. The last name is kept.", "HOST-xxxxxxxx"),
    "join": Words(
        "Gossip addresses of members. The agent founds no cluster before one of them has answered."
        " In a variable, commas or blanks separate addresses; the flag is repeated; the file has a list.",
        "none",
    ),
    "expect": Words("Found a cluster only when this many agents have met.", "none"),
    "failure_domain": Words(
        "What fails together, such as a rack. Replicas of a partition prefer different domains.",
        "host name",
    ),
    "weight": Words("Share of the replicas relative to other agents, 1 to 10000."),
    "gossip": Words("`embedded`, or `serf`: membership through a Serf agent that already runs."),
    "gossip_key": Words(
        "AES key in base64, or `@FILE`; the flag takes `@FILE` only."
        " Later `gossip-keyring.json` in the data directory decides;"
        " `shoal keys` rotates.",
        "none",
    ),
    "gossip_label": Words("Agents with different labels never meet.", "none"),
    "gossip_verify_incoming": Words("Reject unsealed gossip. False only while a key is introduced."),
    "gossip_verify_outgoing": Words("Seal outgoing gossip. False only while a key is introduced."),
    "serf_rpc": Words("RPC address of the Serf agent.", f"127.0.0.1:{DEFAULT_SERF_RPC_PORT}"),
    "serf_auth_key": Words("The Serf agent's `rpc_auth`; the flag takes `@FILE`.", "none"),
    "log_format": Words(
        "`text`, `json`, or `auto`: text on a terminal,"
        " [JSON lines](operations/monitoring.md#the-log) elsewhere."
    ),
    "log_level": Words("Least level that is logged: `debug`, `info`, `warning` or `error`."),
    "cores": Words("Number of agents on this host, each with its own directory and ports, 1 to 256."),
    "mdns": Words("Find agents by mDNS.", "true on loopback, and where `cluster` is given"),
    "disk": Words("`ring` (io_uring), `threads`, or `auto`: io_uring where the kernel allows it."),
    "event_loop": Words("`direct`, or `asyncio`: the standard loop without shortcuts, for comparisons."),
    "auto_create_topics": Words("The first record for an unknown topic creates the topic."),
    "discovery_window": Words(
        "How long an empty agent listens for a cluster before it may found one, 0 to 10m."
    ),
    "heartbeat_interval": Words("Interval of a leader's heartbeats, at least 10ms. Same on all agents."),
    "election_timeout": Words(
        "Silence of a leader before an election, at least three heartbeat intervals. Same on all agents.",
    ),
    "shutdown_timeout": Words("Limit for handing leadership over after SIGTERM, at most 10m."),
    "dissolve_timeout": Words(
        "Limit for an empty cluster that gives itself up for another one, at most 10m."
    ),
    "replace_after": Words(
        "How long a member is unreachable before its replicas are placed elsewhere, at most 7d."
    ),
    "scrub_bytes_per_s": Words("Rate at which stored bytes are read again and verified. 0 disables it."),
    "hold_level": Words(
        "The cluster keeps its feature level while a member has this, until `shoal cluster raise-level`."
    ),
}
TOPIC_SETTINGS: Mapping[str, TopicWords] = {
    "kind": TopicWords(
        CREATION, "Kind of topic: `log`, `timer` ([timers](timers.md)) or `table` ([tables](tables.md))."
    ),
    "partitions": TopicWords(CREATION, f"Number of partitions, 1 to {MAX_PARTITIONS}."),
    "replication_factor": TopicWords(
        STEPS, f"Copies of each partition, 1 to {MAX_REPLICATION_FACTOR}, or `all`: a copy on every agent."
    ),
    "retention.age": TopicWords(CHANGE, "Older batches are removed, in whole segments. null: kept for ever."),
    "retention.bytes": TopicWords(
        CHANGE, f"Bytes kept of each partition, at least {MIN_SEGMENT_BYTES}. null: no limit."
    ),
    "retention.hold_for_groups": TopicWords(
        CHANGE,
        "Records that a consumer group is not done with are kept up to twice as long.",
    ),
    "retention.acknowledged": TopicWords(
        CHANGE, "Segments go once all consumer groups are done with their records, if there is one."
    ),
    "segment.bytes": TopicWords(
        "next append", f"Size of a segment file, {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}."
    ),
    "segment.age": TopicWords(CHANGE, "Age at which a segment is closed. null: when it is full."),
    "fsync": TopicWords(
        CREATION,
        "false: acknowledged before the disk has the record. A power failure may lose it on all replicas.",
    ),
}
CLIENT_SETTINGS: Mapping[str, Words] = {
    "linger_ms": Words("How long a record waits for others while its partition is idle."),
    "batch_rows_max": Words("Most records of a request."),
    "batch_bytes_max": Words("Most bytes of a request."),
    "buffered_bytes_max": Words("Unacknowledged bytes of a producer above which `send` blocks."),
    "base_ms": Words("First pause between two attempts; it doubles."),
    "cap_ms": Words("Longest pause between two attempts."),
    "total_ms": Words("Time after which a request has failed."),
    "first_contact_ms": Words("How long a new client waits for its first agent."),
    "attempt_timeout_ms": Words("Time that an agent has to answer one attempt."),
    "connect_timeout_ms": Words("Time to open a connection."),
    "connections_max": Words("Most connections of a client."),
}
VARIABLES: Mapping[str, tuple[str, str]] = {
    "SHOAL_AGENT": (
        "commands, Python clients, Spark",
        "Agents to ask, as URLs with commas between. Default `http://127.0.0.1:7070`.",
    ),
    "SHOAL_TOKEN": (
        "commands, Python clients, Spark",
        "The token that each request carries, or `@FILE` with it.",
    ),
    "SHOAL_CA": (
        "commands, Python clients, Spark",
        "The certificates of the authority that signed those of the agents. Default: what the system trusts.",
    ),
    "SHOAL_CERTIFICATE": (
        "commands, Python clients, Spark",
        "The client's own certificate, where agents ask for one.",
    ),
    "SHOAL_CERTIFICATE_KEY": (
        "commands, Python clients, Spark",
        "Its key, unless that stands in the same file.",
    ),
    "SHOAL_CONTEXT": (
        "commands",
        "The context that counts, empty for none. Default: the one that `shoal context use` named.",
    ),
    "SHOAL_CONFIG": ("`shoal agent`", "The configuration file, as `--config` names it."),
    "SHOAL_FIRST_PROCESS": (
        "agents of `--cores`",
        "Set by the first process, never by hand: an agent ends when that process is gone.",
    ),
    "SHOAL_KAFKA": ("`scripts/bench spark`", "HOST:PORT of a Kafka to compare with."),
    "SHOAL_PARENT": ("`scripts/bench spark_before`", "A checkout of another commit, to measure beside."),
    "SHOAL_KAFKA_PACKAGE": ("`scripts/bench spark`", "Maven coordinates of Spark's Kafka connector."),
    "SHOAL_TOPIC": ("commands of `shoal consume --exec`", "Set for the command: the message's topic."),
    "SHOAL_PARTITION": ("commands of `shoal consume --exec`", "Its partition."),
    "SHOAL_OFFSET": ("commands of `shoal consume --exec`", "Its offset."),
    "SHOAL_ATTEMPT": ("commands of `shoal consume --exec`", "Which delivery this is, from 1 on."),
    "SHOAL_TIMESTAMP_MS": ("commands of `shoal consume --exec`", "Its time, in milliseconds since 1970."),
    "SHOAL_KEY": (
        "commands of `shoal consume --exec`",
        "Its key; unset where it has none, or one with a zero byte.",
    ),
    "SHOAL_SERF": ("`scripts/test`, `scripts/bench gossip`", "Path of a Serf binary to test with."),
}
KINDS = {
    "_text": "text",
    "_integer": "number",
    "_boolean": "true, false",
    "_list": "list",
    "_duration_ms": "time",
}
UNITS = {"_port": "port", "_bytes_per_s": "bytes/s", "join": "HOST:PORT list"}
INTRODUCTION = """\
# Configuration

For operators and developers who look a setting up. The page lists every flag, TOML key and `SHOAL_` variable.
`scripts/configuration_reference.py` writes this page from the code; a test fails when it is stale.
[Deployment](operations/deploy.md) says which settings a new cluster needs.
"""
AGENT = """\
## Agent

A flag overrides a `SHOAL_` variable, a variable overrides the file, the file overrides the default.
The file is TOML, named by `--config FILE` or `SHOAL_CONFIG`. Its keys are the names below, with `_` or `-`,
at the top, or all of them under `[agent]`. A time is a number with a unit: {units}.
`shoal config show`, with the flags and the file of an agent, shows each value and where it comes from.
`GET /v1/agent` shows the values in force. Neither shows keys.

The column *takes effect* says when a changed value counts:

- *reload*: at SIGHUP, and at each start.
- *each start*: the value given at a start holds until the next start.
- *first start*: the data directory keeps the first value.
- *founding*: the value matters only while a new cluster forms.
"""
EXAMPLE = """\
### Example file

```toml
# shoal agent --config /etc/shoal.toml
data = "/var/lib/shoal"
cluster = "fish"
bind = "10.0.0.5"
join = ["10.0.0.5:7946", "10.0.0.6:7946", "10.0.0.7:7946"]
expect = 3                       # first start: a cluster forms when all three have met
failure_domain = "rack-1"
gossip_key = "@/etc/shoal.key"   # written by: (umask 077; shoal keygen > /etc/shoal.key)
replace_after = "1h"
auto_create_topics = false
```

Three agents share this file. Only `bind` and `failure_domain` differ.
"""
TOPIC = """\
## Topic

`shoal topic create` and `PUT /v1/topics/NAME` take these settings. `shoal topic alter` and `PATCH` change
replicas, retention and segments of an existing topic; all other settings are fixed. `shoal topic config NAME`
shows a topic's values beside the defaults. No change needs a restart. The leader of a partition applies a
changed retention within five seconds, and [adds or removes
replicas](operations/deploy.md#change-the-number-of-replicas) one at a time.
"""
CLIENT = """\
## Python client

`client.producer(topic, batching=BatchingConfig(...))` and `Client(url, config=ClientConfig(...))` take these
values; `ClientConfig(retry=RetryPolicy(...))` has the pauses. [Spark](spark.md#read) has options of its own.
Times are in milliseconds, sizes in bytes.
"""
OTHERS = """\
## Other variables

Every setting of an agent has a variable of its own, in the first table. These belong to other programs:
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Markdown: one line a row."""
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _words(named: Iterable[str], words: Mapping[str, Any]) -> None:
    names = set(named)
    lacking, unknown = sorted(names - set(words)), sorted(set(words) - names)
    if lacking or unknown:
        raise SystemExit(f"{__file__}: no words for {lacking}, words for nothing: {unknown}")


def default_of(known: Setting) -> Any:
    """The default of an agent's setting, as the code has it; None where it is computed at the start."""
    return None if known.default is dataclasses.MISSING or known.default == () else known.default


def shown(value: Any, unit: str) -> str:
    """A default as people would write it."""
    if unit != "time" or value is None:
        return json.dumps(value).strip('"')
    sizes = sorted(DURATION_UNITS_MS.items(), key=lambda pair: -pair[1])
    return next(f"{value // size}{name}" for name, size in sizes if value % size == 0)


def agent_rows() -> Iterable[list[str]]:
    """One row a setting, in the order of the code."""
    _words(AGENT_SETTINGS, SETTINGS)
    flags = set(inspect.signature(agent).parameters)
    for name, known in AGENT_SETTINGS.items():
        words, value = SETTINGS[name], default_of(known)
        reader = KINDS[known.read.__name__]
        unit = next((unit for ending, unit in UNITS.items() if name.endswith(ending)), reader)
        if (value is None) != bool(words.default) and name != "data":
            raise SystemExit(f"{__file__}: {name}: a computed default needs words, and no other does")
        default = words.default or ("" if value is None else f"`{shown(value, unit)}`")
        flag = f"`{known.flag}`" if name in flags else ""
        yield [f"`{name}`", flag, f"`{known.variable}`", default, unit, str(known.effect), words.meaning]


def topic_rows() -> Iterable[list[str]]:
    """One row a setting of a topic, as it stands in JSON."""
    flat: dict[str, Any] = {}
    for name, value in TopicSettings().to_document().items():
        parts = {f"{name}.{part}": one for part, one in value.items()} if isinstance(value, dict) else {}
        flat |= parts or {name: value}
    _words(flat, TOPIC_SETTINGS)
    flags = set(inspect.signature(create).parameters)
    for name, value in flat.items():
        option = OPTIONS.get(name) or (f"--{name}" if name in flags else "")
        flag = f"`{option}`" if option else ""
        words = TOPIC_SETTINGS[name]
        yield [f"`{name}`", flag, f"`{shown(value, '')}`", words.effect, words.meaning]


def client_rows() -> Iterable[list[str]]:
    """One row a field of the client's three values."""
    kinds: tuple[Any, ...] = (BatchingConfig, RetryPolicy, ClientConfig)
    fields = [
        (kind.__name__, field.name, field.default)
        for kind in kinds
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING
    ]
    _words([name for _, name, _ in fields], CLIENT_SETTINGS)
    for kind_name, name, default in fields:
        yield [f"`{kind_name}`", f"`{name}`", f"`{default}`", CLIENT_SETTINGS[name].meaning]


def render() -> str:
    """The whole page."""
    units = ", ".join(f"`{unit}`" for unit in DURATION_UNITS_MS)
    agent_head = ("setting", "flag", "variable", "default", "unit", "takes effect", "meaning")
    parts = [
        INTRODUCTION,
        AGENT.format(units=units),
        table(agent_head, agent_rows()),
        EXAMPLE,
        TOPIC,
        table(("in JSON", "flag", "default", "takes effect", "meaning"), topic_rows()),
        CLIENT,
        table(("value", "field", "default", "meaning"), client_rows()),
        OTHERS,
        table(
            ("variable", "read by", "meaning"),
            ([f"`{name}`", reader, meaning] for name, (reader, meaning) in VARIABLES.items()),
        ),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stderr.write(f"{PAGE}: written\n")
