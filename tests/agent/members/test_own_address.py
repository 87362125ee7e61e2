"""An agent behind a name: which address the pool is told at the start, and when another one later."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from shoal.agent.config import AgentConfig
from shoal.agent.members import own_address
from shoal.agent.members.own_address import NameWatch, Unusable, choose_address, settle_address
from shoal.agent.members.tags import (
    TAG_BOOT_NONCE,
    TAG_CLUSTER,
    TAG_DOMAIN,
    TAG_HOST,
    TAG_NAME,
    TAG_URL,
    check_length,
)
from shoal.agent.process.errors import StartError
from shoal.lookup import Lookup

ANY = "0.0.0.0"
OWN = "10.0.0.5"


def lookup_of(answers: Sequence[str] | list[Sequence[str]]) -> Lookup:
    """That answers every question with this."""
    return Lookup(lambda _: [str(one) for one in answers])


def behind_a_name(bind: str = ANY) -> AgentConfig:
    return AgentConfig.from_sources({"data": "d", "bind": bind, "advertise": "a.example"})


@pytest.mark.parametrize(
    ("found", "bind", "chosen"),
    [
        (["10.0.0.4", OWN], ANY, OWN),
        (["10.0.0.4", "10.0.0.3"], ANY, "10.0.0.4"),
        (["fd00::1", OWN], ANY, OWN),
        (["fd00::1"], "::", "fd00::1"),
        (["::ffff:10.0.0.5"], ANY, OWN),
        (["10.0.0.4", "10.0.0.3"], "10.0.0.3", "10.0.0.3"),
        (["10.0.0.4"], "10.0.0.3", "10.0.0.4"),
        (["127.0.1.1"], OWN, OWN),
        (["127.0.1.1", "10.0.0.4"], ANY, "10.0.0.4"),
        (["127.0.0.1"], "127.0.0.1", "127.0.0.1"),
    ],
)
def test_one_of_two_addresses_is_chosen(found: list[str], bind: str, chosen: str) -> None:
    """This host's own, of a family that the agent takes; behind a translation of addresses the first."""
    assert choose_address(found, bind, lambda address: address == OWN) == chosen


@pytest.mark.parametrize(
    ("found", "bind", "reason"),
    [
        (["10.0.0.5"], "127.0.0.1", "bind that address"),
        (["127.0.1.1"], ANY, "mend /etc/hosts"),
        (["fd00::1"], ANY, "give --bind ::"),
    ],
)
def test_an_address_that_nobody_reaches_is_refused(found: list[str], bind: str, reason: str) -> None:
    """The text says what to do."""
    with pytest.raises(Unusable, match=reason):
        choose_address(found, bind, lambda _: False)


async def test_a_start_waits_for_a_name_and_then_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once while it waits; a name that never has an address keeps the agent from starting."""
    monkeypatch.setattr(own_address, "START_RETRY_S", 0.001)
    answers = iter([[], [], [OWN, "10.0.0.4"]])
    with caplog.at_level(logging.INFO):
        chosen = await settle_address(behind_a_name(), Lookup(lambda _: next(answers)))
    assert chosen == OWN
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "waiting",
        "a.example has 2 addresses",
        f"a.example leads to {OWN}, which is not an address of this host",
    ]
    monkeypatch.setattr(own_address, "START_PATIENCE_S", 0.0)
    with pytest.raises(StartError, match=r"--advertise a.example: the name a.example has no address"):
        await settle_address(behind_a_name(), lookup_of([]))
    with pytest.raises(StartError, match=r"--advertise a.example: its address 127.0.1.1 is loopback"):
        await settle_address(behind_a_name(), lookup_of(["127.0.1.1"]))
    assert await settle_address(AgentConfig.from_sources({"data": "d"}), lookup_of([])) == "127.0.0.1"


class Moves:
    """A watch whose name's answers are set one by one; `told` is what the pool was told."""

    def __init__(self, *own: str, can_move: bool = True, bind: str = ANY) -> None:
        self.answers: list[str] = []
        self.told: list[str] = []
        self._can_move = can_move
        self.watch = NameWatch(
            behind_a_name(bind), OWN, Lookup(lambda _: list(self.answers)), self._tell, own.__contains__
        )

    def _tell(self, address: str) -> bool:
        self.told.append(address)
        return self._can_move

    async def look(self, *answers: str, times: int = 1) -> list[str]:
        self.answers = list(answers)
        for _ in range(times):
            await self.watch.look("a.example")
        return self.told


async def test_a_name_that_leads_elsewhere_moves_the_agent() -> None:
    """After two lookups in a row, to an address of this host, or behind a translation of addresses to any."""
    moves = Moves("10.0.0.9")
    assert await moves.look("10.0.0.9") == []
    assert await moves.look(OWN) == []
    assert await moves.look("10.0.0.9") == []
    assert await moves.look("10.0.0.9") == ["10.0.0.9"]
    assert await moves.look("10.0.0.9", times=3) == ["10.0.0.9"]
    assert await moves.look("10.0.0.8", times=1) == ["10.0.0.9"]
    translated = Moves()
    assert await translated.look("10.0.0.9", times=2) == ["10.0.0.9"]


async def test_a_name_that_leads_to_somebody_else_moves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """This host still has its address, and not the new one: whoever changed the name is told so, once."""
    moves = Moves(OWN)
    assert await moves.look("10.0.0.9", times=4) == []
    assert [record.message for record in caplog.records] == [
        f"a.example leads to 10.0.0.9, which is not this host's; the pool is told {OWN}"
    ]
    caplog.clear()
    assert await moves.look(times=3) == []
    assert await moves.look("127.0.0.1", times=3) == []
    assert [record.message.partition(" is loopback")[0] for record in caplog.records] == [
        "the name a.example has no address; peers and clients that look it up do not find this agent",
        "--advertise a.example: its address 127.0.0.1",
    ]


async def test_a_fault_of_the_name_that_comes_back_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    """Months may lie between. The log's filter bounds one that comes and goes."""
    moves = Moves(OWN)
    lost = "the name a.example has no address; peers and clients that look it up do not find this agent"
    await moves.look(times=3)
    await moves.look(OWN)
    await moves.look(times=3)
    assert [record.message for record in caplog.records] == [lost, lost]
    assert all(vars(record)["repeats"] for record in caplog.records)


async def test_where_a_serf_agent_tells_the_address_it_is_only_said(caplog: pytest.LogCaptureFixture) -> None:
    """Once; and a bound address stays whatever the name says."""
    hosted = Moves("10.0.0.9", can_move=False)
    await hosted.look("10.0.0.9", times=4)
    assert hosted.watch.address == OWN
    assert [record.message for record in caplog.records] == [
        "a.example leads to 10.0.0.9: the Serf agent tells the pool where this agent is"
    ]
    bound = Moves(OWN, bind=OWN)
    assert await bound.look("127.0.1.1", times=3) == []


def test_names_that_leave_no_room_in_gossip_keep_the_agent_from_starting() -> None:
    """What an agent says later has to fit, too: 512 bytes hold all of it."""
    long = {TAG_NAME: "n" * 64, TAG_CLUSTER: "c" * 64, TAG_DOMAIN: "d" * 64, TAG_URL: f"http://{OWN}:7070"}
    check_length(long | {TAG_HOST: "shoal-0.shoal-agents.default.svc.cluster.local"})
    with pytest.raises(StartError, match=r"the limit is 512\): shorten --advertise, --name, --cluster or"):
        check_length(long | {TAG_HOST: "h" * 60 + "." + "h" * 60, TAG_BOOT_NONCE: "b" * 32})
