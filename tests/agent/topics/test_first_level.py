"""Bytes at the first level: those that the version before levels writes, taken from commit 4205efb.

Such an agent shares a cluster with ours until the level rises, and may come back as long. A change that makes
a test here fail belongs to a higher level.
"""

from __future__ import annotations

from typing import Any

import pytest

from shoal.agent.levels import FIRST_LEVEL
from shoal.agent.peers.frames import FrameType, Hello, LinkKind, frame_head
from shoal.agent.topics.catalog import (
    BeginEpoch,
    Births,
    Catalog,
    ChangeTopic,
    Command,
    ConfirmBirths,
    ConfirmDeletion,
    CreateTopic,
    DeleteTopic,
    Rebirth,
    RepeatBirths,
    Seal,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import OPERATIONS, decode_command, encode_command, level_of_command
from shoal.agent.topics.cluster_file import ClusterRecord
from shoal.agent.topics.entries import PartitionBirth
from shoal.agent.topics.settings import TopicSettings
from shoal.format.hash_ranges import hash_ranges

A, B = "a" * 32, "b" * 32
ID = bytes(range(16))
OTHER_ID = ID[::-1]
BIRTHS = tuple(PartitionBirth(bounds, (A, B), number) for number, bounds in enumerate(hash_ranges(2)))
SETTINGS = TopicSettings(
    partitions=2,
    replication_factor="all",
    retention_age_ms=90_000,
    retention_bytes=1 << 30,
    segment_age_ms=None,
    fsync=False,
)
ORDERS = TopicEntry("orders", ID, SETTINGS, BIRTHS, 1_700_000_000_000_000, unborn=2)
GONE = TopicEntry("gone", OTHER_ID, TopicSettings(partitions=2), BIRTHS, 5)

HEX_ID = b"000102030405060708090a0b0c0d0e0f"
HEX_OTHER_ID = b"0f0e0d0c0b0a09080706050403020100"
VOTERS = b'["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"]'
SETTINGS_JSON = (
    b'{"kind":"log","partitions":2,"replication_factor":"all","retention":{"age":"90s","bytes":1073741824},'
    b'"segment":{"bytes":67108864,"age":null},"fsync":false}'
)
PARTITIONS_JSON = (
    b'"partitions":[{"range":[0,2147483647],"voters":' + VOTERS + b"},"
    b'{"range":[2147483648,4294967295],"voters":' + VOTERS + b',"birth":1}]'
)
HEAD_JSON = (
    b'{"name":"orders","id":"'
    + HEX_ID
    + b'","settings":'
    + SETTINGS_JSON
    + b',"created_us":1700000000000000,'
)
COMMANDS: tuple[tuple[Command, bytes], ...] = (
    (
        CreateTopic(ORDERS),
        b'{"v":1,"op":"create","topic":' + HEAD_JSON + b'"unborn":"2",' + PARTITIONS_JSON + b"}}",
    ),
    (
        ChangeTopic(ID, SETTINGS),
        b'{"v":1,"op":"change","id":"' + HEX_ID + b'","settings":' + SETTINGS_JSON + b"}",
    ),
    (
        DeleteTopic(ID, frozenset([B, A])),
        b'{"v":1,"op":"delete","id":"' + HEX_ID + b'","holders":' + VOTERS + b"}",
    ),
    (
        ConfirmDeletion(ID, A),
        b'{"v":1,"op":"confirm","id":"' + HEX_ID + b'","agent":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}',
    ),
    (Seal(ID), b'{"v":1,"op":"seal","successor":"' + HEX_ID + b'"}'),
    (
        BeginEpoch(1 << 40 | 7, ID),
        b'{"v":1,"op":"epoch","epoch":1099511627783,"base":"' + HEX_ID + b'"}',
    ),
    (
        ConfirmBirths((Births(ID, 1, 2),)),
        b'{"v":1,"op":"born","births":[{"id":"' + HEX_ID + b'","birth":1,"partitions":"2"}]}',
    ),
    (
        RepeatBirths(ID, (Rebirth(1, 2, (B,)),)),
        b'{"v":1,"op":"rebirth","id":"' + HEX_ID + b'","births":[{"partition":1,"birth":2,'
        b'"voters":["bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"]}]}',
    ),
)
STATE = (
    b'{"v":1,"version":4,"sealed_for":null,"topics":[' + HEAD_JSON + PARTITIONS_JSON + b"}],"
    b'"tombstones":[{"id":"'
    + HEX_OTHER_ID
    + b'","name":"gone","partitions":2,"waiting_for":'
    + VOTERS
    + b"}]}"
)
STATE_DIGEST = "65dd3a93e92607df2547900aa7f6b9c1"
RECORD = (
    b'shoal-cluster-1 6c494a17\n{"cluster":"prod","id":"' + HEX_ID + b'","birth":' + VOTERS + b"}\n" + STATE
)
GREETING = bytes.fromhex(
    "3f000000015348505201000100010203"
    "0405060708090a0b0c0d0e0faaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaabbbbbbbb"
    "bbbbbbbbbbbbbbbbbbbbbbbb6e6f6e63"
    "652d2d2d"
)


def state() -> Catalog:
    catalog = Catalog()
    commands = (CreateTopic(ORDERS), CreateTopic(GONE), DeleteTopic(OTHER_ID, frozenset([A])))
    for offset, command in enumerate((*commands, ConfirmBirths((Births(ID, 1, 2),)))):
        assert catalog.apply(offset, command) == "done"
    return catalog


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=lambda item: type(item).__name__)
def test_a_command_of_the_first_level_has_the_bytes_of_before_levels(command: Any, expected: bytes) -> None:
    """And is read from them."""
    assert encode_command(command) == expected
    assert decode_command(expected) == command


def test_every_command_of_the_first_level_is_held_against_its_bytes() -> None:
    """None is missing here."""
    tried = {type(command) for command, _ in COMMANDS}
    assert all(level_of_command(command) == FIRST_LEVEL for command, _ in COMMANDS)
    above = {
        "AlterTopic", "RaiseLevel", "CreateGroup", "ChangeGroup", "DeleteGroup", "PutPrincipal",
        "DeletePrincipal", "PutRole", "DeleteRole", "MakeToken", "RevokeToken", "MakeSessionKey",
        "EndSession",
    }  # fmt: skip
    assert {kind.__name__ for kind in OPERATIONS.keys() - tried} == above


def test_a_state_of_the_first_level_has_the_bytes_and_the_digest_of_before_levels() -> None:
    """In a follower's copy, on the disk, and as the base of a recovered epoch."""
    assert state().to_bytes() == STATE
    assert state().digest().hex() == STATE_DIGEST
    assert Catalog.from_bytes(STATE) == state()
    assert Catalog().to_bytes() == b'{"v":1,"version":0,"sealed_for":null,"topics":[],"tombstones":[]}'


def test_the_record_of_a_cluster_has_the_bytes_of_before_levels() -> None:
    """The former version starts from it."""
    record = ClusterRecord("prod", ID, (A, B), STATE)
    assert record.to_bytes() == RECORD
    assert ClusterRecord.from_bytes(RECORD) == record


def test_a_greeting_of_link_version_1_has_the_bytes_of_before_levels() -> None:
    """Both ways."""
    payload = Hello(LinkKind.BULK, ID, A, B, b"nonce---").to_bytes(1)
    assert frame_head(FrameType.HELLO, len(payload)) + payload == GREETING
    assert Hello.from_bytes(GREETING[5:], 1) == Hello(LinkKind.BULK, ID, A, B, b"nonce---")
