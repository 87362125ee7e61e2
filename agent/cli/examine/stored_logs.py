"""The logs that a path names: a data directory, a topic's or a partition's directory, or one segment file.

Law of this file: it finds and names logs, and reads two small files of the data directory: its lock and the
record of its cluster. segment_store reads the logs. Nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.agent.cli.terminal.output import CliError
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.partition.opener import COPIES_DIRECTORY
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.cluster_file import (
    FILE_NAMES,
    MAX_FILE_BYTES,
    SINGLE_FILE_NAME,
    ClusterFileError,
    newest_copy,
)
from shoal.format.batch import LogIdentity
from shoal.segment_store.disk.lock import LOCK_FILE, ReaderLock
from shoal.segment_store.errors import NotOwner
from shoal.segment_store.format.layout import SEGMENT_SUFFIX, SegmentName, parse_name

TOPICS = "topics"
CATALOG_NAME = "_catalog"
_ID_CHARACTERS = 32


class NotALog(CliError):
    """The path names no readable log. The text is one line: the fault and the cure."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """One partition's directory. `topic` is its name, or its id where the catalog does not know it; `only`
    is set when the path named one segment."""

    topic: str
    partition: int
    directory: str
    identity: LogIdentity
    only: SegmentName | None = None

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class _Owner:
    cluster_id: bytes
    names: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def stored_logs(path: str, cluster_id: str | None) -> Iterator[list[StoredLog]]:
    """The logs under `path`, in order of topic and partition; no agent starts on them meanwhile.

    `cluster_id` (32 hexadecimal digits) is for files that were copied out of their data directory. Raises
    NotALog.
    """
    if not os.path.exists(path):
        raise NotALog(
            f"{path or 'an empty path'} does not exist: give an agent's data directory, or a path in it"
        )
    path = os.path.abspath(path)
    data_directory = _data_directory(path)
    with contextlib.ExitStack() as stack:
        if data_directory is not None and os.path.exists(os.path.join(data_directory, LOCK_FILE)):
            try:
                stack.enter_context(ReaderLock(data_directory))
            except NotOwner as error:
                raise NotALog(f"{error}: stop that agent first") from None
        owner = _owner(data_directory, cluster_id)
        logs = sorted(_find(path, owner), key=lambda log: (log.topic, log.partition))
        if not logs:
            raise NotALog(f"there is no log under {path}: give an agent's data directory, or a path in it")
        yield logs


def _data_directory(path: str) -> str | None:
    """The directory at or above the path that has a cluster's record; None for files that were copied."""
    while True:
        if any(os.path.isfile(os.path.join(path, name)) for name in (*FILE_NAMES, SINGLE_FILE_NAME)):
            return path
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent


def _owner(data_directory: str | None, cluster_id: str | None) -> _Owner:
    if cluster_id is not None and not re.fullmatch(f"[0-9A-Fa-f]{{{_ID_CHARACTERS}}}", cluster_id):
        raise NotALog(f"--cluster-id {cluster_id!r}: a cluster id is {_ID_CHARACTERS} hexadecimal digits")
    given = None if cluster_id is None else bytes.fromhex(cluster_id)
    if data_directory is None:
        if given is not None:
            return _Owner(given)
        raise NotALog(
            "no data directory lies around that path, and checksums depend on the cluster: give --cluster-id"
        )
    copies = [_copy(data_directory, name) for name in FILE_NAMES]
    if copies == [None, None]:
        copies = [_copy(data_directory, SINGLE_FILE_NAME)]
    try:
        record = newest_copy(copies)
    except ClusterFileError as error:
        if given is not None:
            return _Owner(given)
        raise NotALog(f"{data_directory}/cluster is damaged ({error}): give --cluster-id") from None
    assert record is not None
    if given not in (None, record.cluster_id):  # everything would look damaged
        raise NotALog(
            f"{data_directory} belongs to cluster {record.cluster_id.hex()}: leave --cluster-id out"
        )
    names = {entry.topic_id.hex(): name for name, entry in Catalog.from_bytes(record.catalog).topics.items()}
    names[CATALOG_GROUP.topic_id.hex()] = CATALOG_NAME
    return _Owner(record.cluster_id, names)


def _copy(data_directory: str, name: str) -> bytes | None:
    try:
        with open(os.path.join(data_directory, name), "rb") as file:
            return file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return None


def _find(path: str, owner: _Owner) -> Iterator[StoredLog]:
    if os.path.isfile(path):
        name = parse_name(os.path.basename(path))
        if name is None:
            raise NotALog(f"{path} is no segment: those are named NUMBER-NUMBER{SEGMENT_SUFFIX}")
        log = _log(os.path.dirname(path), owner)
        yield StoredLog(log.topic, log.partition, log.directory, log.identity, name)
        return
    for directory, directories, files in os.walk(path):
        directories[:] = sorted(name for name in directories if name != COPIES_DIRECTORY)
        if any(parse_name(file) is not None for file in files):
            yield _log(directory, owner)


def _log(directory: str, owner: _Owner) -> StoredLog:
    """Topic id and partition are the last two parts of the path (safety 4)."""
    partition = os.path.basename(directory)
    topic_id = os.path.basename(os.path.dirname(directory))
    try:
        identity = LogIdentity(owner.cluster_id, bytes.fromhex(topic_id), int(partition))
    except (ValueError, AssertionError):
        raise NotALog(f"{directory} is no partition: those lie in TOPIC-ID/NUMBER") from None
    return StoredLog(owner.names.get(topic_id, topic_id), int(partition), directory, identity)
