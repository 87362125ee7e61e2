"""The schema of a log line: the keys, their kinds, and how a record of Python's logging fills them.

Law of this file: values in, one flat document out; neither stream nor clock. An agent's own records state
facts as `extra=about(...)`; a partition, or a range of offsets, among a record's arguments is found here.
Records of libraries have the same keys, and their event is the name of the library.
"""

from __future__ import annotations

import datetime
import logging
import re
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from shoal.agent.log_lines.names import CATALOG_NAME, topic_name

LEVELS: Final = ("debug", "info", "warning", "error")
"""Levels that can be asked for; `critical` stands above them all."""
FORMATS: Final = ("auto", "text", "json")
"""auto: text on a terminal, JSON lines elsewhere."""
OWN_LOGGERS: Final = "shoal"
WARNINGS_LOGGER: Final = "py.warnings"
MESSAGE_CHARACTERS_MAX = 8_192
TRACEBACK_CHARACTERS_MAX = 32_768
"""A group of exceptions repeats long stacks; the end of a traceback names the fault, so its end is kept."""
SLUG_WORDS_MAX = 8
OTHER = "other"


class Key(NamedTuple):
    """`kind` is that of the value in JSON; a line without the key has nothing to say of it."""

    kind: type
    is_always_there: bool
    meaning: str


KEYS: Final[Mapping[str, Key]] = {
    "ts": Key(str, True, "time in UTC, with milliseconds and `Z`"),
    "level": Key(str, True, "`debug`, `info`, `warning`, `error` or `critical`"),
    "event": Key(str, True, "what happened, in words that stay the same while the message's vary"),
    "agent": Key(str, False, "this agent's name, once it has read its directory"),
    "logger": Key(str, True, "the part of the code, or the library"),
    "message": Key(str, True, "what people read"),
    "topic": Key(str, False, "the topic, where the line is about one"),
    "partition": Key(int, False, "the number of the partition, where the line is about one"),
    "term": Key(int, False, "the Raft term in which a leader was elected or lost"),
    "offset": Key(int, False, "the first offset that is concerned"),
    "request": Key(str, False, "method and path of the HTTP request"),
    "members": Key(list, False, "names of agents, the first four"),
    "partitions": Key(list, False, "partitions as `topic/number`, the first four"),
    "total": Key(int, False, "how many agents or partitions the line is about"),
    "held_back": Key(int, False, "lines like this one that were not shown before it"),
    "error": Key(str, False, "class of the exception"),
    "traceback": Key(str, False, "the exception with its stack, in one string"),
}
"""In the order in which they are written."""


class Facts(TypedDict, total=False):
    """Facts that a call may state beside its text; `event` is given always."""

    topic: str
    partition: int
    term: int
    offset: int
    request: str
    members: tuple[str, ...]
    partitions: tuple[str, ...]
    total: int


STATED: Final = (*Facts.__annotations__, "event", "held_back")


def about(event: str, **facts: Unpack[Facts]) -> dict[str, Any]:
    """For `extra=` of a logger's call."""
    return {"event": event, **facts}


def partition_facts(where: str) -> Facts:
    """Topic and number of a partition that is called by its name, as `orders/3`."""
    topic, slash, number = where.rpartition("/")
    if slash and number.isdecimal():
        return {"topic": topic, "partition": int(number)}
    return {"topic": where, "partition": 0} if where == CATALOG_NAME else {}


def is_own(record: logging.LogRecord) -> bool:
    """Whether this program's code wrote it."""
    return record.name == OWN_LOGGERS or record.name.startswith(f"{OWN_LOGGERS}.")


def event_of(record: logging.LogRecord) -> str:
    """The event that the call states; else the words of its text, or the library's name."""
    if not is_own(record):
        return "python-warning" if record.name == WARNINGS_LOGGER else record.name.partition(".")[0]
    stated = getattr(record, "event", None)
    return stated if isinstance(stated, str) else slug(str(record.msg))


@lru_cache(maxsize=1_024)
def slug(template: str) -> str:
    """`disk-full` of "disk full: %d bytes": the words up to the first that ends a thought."""
    constant = re.sub(r"%[-#0 +]*[\d.]*[a-zA-Z%]", " ", template.removeprefix(f"{CATALOG_NAME}: ")).lower()
    head = re.split(r"[:;,(]", constant.strip(" :;,"))[0]
    words = re.findall(r"[a-z0-9]+", re.sub(r"^(the|this|a|an) ", "", head.strip()))
    return "-".join(words[:SLUG_WORDS_MAX]) or OTHER


def message_of(record: logging.LogRecord) -> str:
    """The text for people. Raises what formatting raises."""
    text = record.getMessage() or "(nothing)"
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = f"{text[:MESSAGE_CHARACTERS_MAX]}... ({len(text)} characters)"
    return text


def time_of(record: logging.LogRecord) -> str:
    """UTC with its zone."""
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def traceback_of(record: logging.LogRecord) -> str | None:
    """The end of it, where it is long."""
    if record.exc_info is None or record.exc_info[1] is None:
        return record.stack_info
    text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return text if len(text) <= TRACEBACK_CHARACTERS_MAX else f"...{text[-TRACEBACK_CHARACTERS_MAX:]}"


def document_of(record: logging.LogRecord, agent: str | None) -> dict[str, Any]:
    """By the keys of KEYS, without those that have nothing to say. `agent`: this agent's name."""
    said: dict[str, Any] = {
        "ts": time_of(record),
        "level": record.levelname.lower(),
        "event": event_of(record),
        "agent": agent,
        "logger": record.name,
        "message": message_of(record),
        **_facts(record),
        "traceback": traceback_of(record),
    }
    if record.exc_info is not None and record.exc_info[1] is not None:
        said["error"] = type(record.exc_info[1]).__name__
    return {key: said[key] for key in KEYS if said.get(key) is not None}


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    if not is_own(record):
        return {}
    found: dict[str, Any] = {}
    for argument in record.args if isinstance(record.args, tuple) else ():
        topic_id, partition = getattr(argument, "topic_id", None), getattr(argument, "partition", None)
        offset = getattr(argument, "first_offset", None)
        if isinstance(topic_id, bytes) and isinstance(partition, int):
            found |= {"topic": topic_name(topic_id), "partition": partition}
        elif isinstance(offset, int):
            found["offset"] = int(offset)
    stated = {name: value for name in STATED if (value := getattr(record, name, None)) is not None}
    return found | {name: list(v) if isinstance(v, tuple) else v for name, v in stated.items()}


def faults_of(document: Mapping[str, Any]) -> list[str]:
    """Why a line that was read is none of this schema; empty for one that is."""
    faults = [f"{key} is missing" for key, one in KEYS.items() if one.is_always_there and key not in document]
    for key, value in document.items():
        if key not in KEYS:
            faults.append(f"{key} is no key")
        elif type(value) is not KEYS[key].kind or value in ("", []):
            faults.append(f"{key} is {value!r}")
    if document.get("level") not in (*LEVELS, "critical"):
        faults.append(f"level {document.get('level')!r}")
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(document.get("ts"))) is None:
        faults.append(f"ts {document.get('ts')!r}")
    if re.fullmatch(r"[a-z0-9_]+(-[a-z0-9_]+)*", str(document.get("event"))) is None:
        faults.append(f"event {document.get('event')!r}")
    return faults
