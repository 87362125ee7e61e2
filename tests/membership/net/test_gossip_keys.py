"""Sealed and labelled pools on 127.0.0.1: who has the key gets in, everybody else is refused and named."""

import errno
import logging
import random
import socket
from collections.abc import Callable
from typing import Self

import pytest
from waiting import until

from shoal.membership.config import GossipConfig
from shoal.membership.interface import JoinError, KeyChange
from shoal.membership.net.gossip import Membership
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.messages import VSN, Alive, Endpoint, encode_message
from shoal.membership.wire.packets import encode_packet

KEY, OTHER = bytes(range(16)), bytes(range(32))
FAST = {
    "probe_interval_ms": 100,
    "probe_timeout_ms": 40,
    "gossip_interval_ms": 20,
    "push_pull_interval_ms": 300,
    "reconnect_interval_ms": 300,
    "stream_timeout_ms": 3_000,
}
LOGGER = "shoal.membership.net.gossip"


class Members:
    """Started ones, stopped at the end."""

    def __init__(self) -> None:
        self.all: list[Membership] = []

    async def start(
        self, name: str, *keys: bytes, keep: Callable[[Keyring], None] = lambda _: None, **knobs: object
    ) -> Membership:
        keyring = Keyring(keys) if keys else None
        config = GossipConfig.local(name=name, keyring=keyring, **(FAST | knobs))
        member = Membership(config, rng=random.Random(name), on_event=lambda _: None, keep_keyring=keep)
        await member.start()
        self.all.append(member)
        return member

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.all:
            await member.stop()


def names(member: Membership) -> set[str]:
    return {other.name for other in member.members() if other.status == "alive"}


async def join(member: Membership, seed: Membership) -> int:
    return await member.join([("127.0.0.1", seed.port)])


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused")]


async def test_a_sealed_and_labelled_pool_works_as_a_plain_one() -> None:
    """Join, probes, push/pulls and user events; nothing readable leaves, and nobody is refused."""
    async with Members() as members:
        first = await members.start("a", KEY, label="fish")
        for name in ("b", "c"):
            member = await members.start(name, KEY, label="fish")
            assert await join(member, first) == 1
        await until(lambda: all(names(member) == {"a", "b", "c"} for member in members.all))
        probes = first.statistics().probes
        await until(lambda: first.statistics().probes > probes + 5)
        assert [member.statistics().failed_probes for member in members.all] == [0, 0, 0]
        assert [member.traffic().strangers for member in members.all] == [0, 0, 0]


STRANGERS: dict[str, tuple[tuple[bytes, ...], str, str]] = {
    "another key": ((OTHER,), "fish", "key that is not in the keyring"),
    "no key": ((), "fish", "not encrypted"),
    "another label": ((KEY,), "fowl", "label b'fowl' is not ours"),
    "no label": ((KEY,), "", "label b'' is not ours"),
    "neither": ((), "", "label b'' is not ours"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_strangers_get_in_nowhere_and_are_named_once(
    stranger: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By TCP nor UDP, in either direction; one line about each way they came, however often they try."""
    keys, label, reason = STRANGERS[stranger]
    caplog.set_level(logging.WARNING, LOGGER)
    async with Members() as members:
        ours = await members.start("a", KEY, label="fish")
        theirs = await members.start("z", *keys, label=label)
        for _ in range(5):
            with pytest.raises(JoinError):
                await join(theirs, ours)
        lines = refusals(caplog)
        assert sum("refused a stream from 127.0.0.1: " in line and reason in line for line in lines) == 1
        for _ in range(5):
            with pytest.raises(JoinError):
                await join(ours, theirs)
        packet = encode_packet((encode_message(Alive(1, "z", endpoint(theirs), b"\xff\x80", VSN)),))
        wrapped = theirs._envelope.wrap_packet(packet)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind(("127.0.0.1", 0))
            port = udp.getsockname()[1]
            for _ in range(200):
                udp.sendto(wrapped, ("127.0.0.1", ours.port))
            await until(lambda: ours.traffic().received_packets >= 200)
        assert names(ours) == {"a"}
        assert names(theirs) == {"z"}
        assert ours.traffic().strangers >= 205
        lines = refusals(caplog)
        assert sum(f"refused 127.0.0.1:{port}: " in line for line in lines) == 1
        assert len(lines) <= 5  # our streams, packets and calls, and theirs


def endpoint(member: Membership) -> Endpoint:
    return Endpoint(bytes((127, 0, 0, 1)), member.port)


async def test_the_refused_are_told_why() -> None:
    """Where they can read it: a plain node that calls a plain pool of another cluster sees the connection
    close, one with a key learns that keys are not configured."""
    async with Members() as members:
        plain, sealed = await members.start("a"), await members.start("b", KEY)
        with pytest.raises(JoinError, match="Encryption is configured but remote state is not encrypted"):
            await join(sealed, plain)
        with pytest.raises(JoinError, match="Remote state is encrypted and encryption is not configured"):
            await join(plain, sealed)
        labelled = await members.start("c", label="fish")
        with pytest.raises(JoinError, match="closed before its message was complete"):
            await join(plain, labelled)


async def test_a_plain_pool_changes_over_to_keys_without_losing_a_member() -> None:
    """Restart after restart with the two switches, as the page on operations says; nobody is ever alone."""
    steps: tuple[dict[str, object], ...] = (
        {"verify_incoming": False, "verify_outgoing": False},
        {"verify_incoming": False},
        {},
    )
    async with Members() as members:
        pool = {name: await members.start(name) for name in ("a", "b", "c")}
        for name in ("b", "c"):
            await join(pool[name], pool["a"])
        for knobs in steps:
            for name in sorted(pool):
                await pool[name].stop()
                pool[name] = await members.start(name, KEY, bind_port=pool[name].port, **knobs)
                await join(pool[name], pool["b" if name == "a" else "a"])
                await until(lambda: all(names(member) == {"a", "b", "c"} for member in pool.values()))
        assert all(member.traffic().strangers == 0 for member in pool.values())


async def test_a_keyring_that_cannot_be_kept_does_not_change() -> None:
    """A full disk on one of two members: that one says why, goes on with what it has, and is not lost."""

    def refuse(_: Keyring) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with Members() as members:
        first = await members.start("a", KEY)
        second = await members.start("b", KEY, keep=refuse)
        await join(second, first)
        await until(lambda: names(first) == names(second) == {"a", "b"})
        report = await first.change_keys(KeyChange.INSTALL, OTHER)
        assert report.members == 2
        assert list(report.failures) == ["b"]
        assert "No space left on device" in report.failures["b"]
        listing = await second.keys()
        assert (listing.keys, listing.primaries) == ({KEY: 2, OTHER: 1}, {KEY: 2})
        assert names(first) == names(second) == {"a", "b"}


async def test_packets_stay_within_their_budget() -> None:
    """The seal and the label come off what a packet may hold; the broadcast queue knows it too."""
    config = GossipConfig.local(name="a", keyring=Keyring((KEY,)), label="fish")
    assert config.content_bytes == config.packet_bytes - 29 - 6
    assert GossipConfig.local(name="a").content_bytes == config.packet_bytes
    with pytest.raises(ValueError, match="label"):
        GossipConfig.local(name="a", label="x" * 256)
