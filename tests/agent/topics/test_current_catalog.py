"""Principals of a catalog at the start of an agent: saved before they are told, and asked of the leader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from waiting import until

from shoal.agent.partition.status import ServingState
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.security.access import AskedBy
from shoal.agent.security.principals import PutPrincipal
from shoal.agent.topics import catalog_service
from shoal.agent.topics.catalog import Catalog, CreateTopic
from shoal.errors import ShoalError
from tests.agent.topics.test_catalog_service import OTHER, SELF, Fixture, entry, frame, gives, v

PUT = PutPrincipal("ann", None, ("admin",), (), AskedBy("bootstrap", "token", "127.0.0.1", 1_000, "r"))


async def test_principals_are_saved_before_a_peer_or_a_client_hears_of_them() -> None:
    """Whoever was told of a revocation has it after every crash. Topics are told before they are saved."""
    fixture = Fixture((SELF,))
    service = fixture.service
    service.apply(frame(0, CreateTopic(entry())))
    await service.exchange.on_await(OTHER, v(1))
    await service.saved_security(10)
    assert fixture.saved == []
    service.apply(frame(1, PUT))
    waiting = asyncio.create_task(service.exchange.on_await(OTHER, v(2)))
    with pytest.raises(ShoalError, match="not saved here") as caught:
        await service.saved_security(10)
    assert (caught.value.code, caught.value.definite) == ("timeout", False)
    assert not waiting.done()
    await service.local.save()
    assert await waiting == v(2)
    await service.saved_security(10)
    assert "ann" in fixture.saved[-1].security.principals


async def test_an_agent_that_starts_is_current_once_it_has_what_the_leader_has() -> None:
    """An answer that is newer than the state here starts a copy; until it is there nothing is judged."""
    newer = Catalog()
    newer.apply(0, CreateTopic(entry(1, (OTHER,))))
    newer.apply(1, PUT)
    fixture = Fixture((), leader=OTHER)
    fixture.service.is_current = False
    fixture.peers.versions[OTHER] = Catalog().version
    async with fixture.running():
        await until(lambda: (OTHER, PeerMessage.CATALOG_AWAIT) in fixture.peers.asked)
        assert not fixture.service.is_current, "it was not answered"
        fixture.peers.answers[PeerMessage.CATALOG_AWAIT] = lambda _: v(2)
        asked = len(fixture.peers.asked)
        await until(lambda: (OTHER, PeerMessage.CATALOG_PULL) in fixture.peers.asked[asked:])
        assert not fixture.service.is_current, "it has no copy yet"
        fixture.peers.answers[PeerMessage.CATALOG_PULL] = gives(newer)
        await until(lambda: fixture.service.is_current)
        assert "ann" in fixture.service.catalog.security.principals


@pytest.mark.parametrize("leader", [SELF, None])
async def test_an_agent_that_leads_or_is_cut_off_has_applied_its_own_log(
    leader: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on without the others, but not from the file of before the crash."""
    if leader is None:
        monkeypatch.setattr(catalog_service, "CUT_OFF_S", 0.02)
    fixture = Fixture((SELF,), leader=leader)
    status = SimpleNamespace(log_start_offset=0, term=1, state=ServingState.ACTIVE, high_watermark=1)
    monkeypatch.setattr(fixture.groups, "status", lambda _: status)
    fixture.groups.end = 1
    fixture.service.is_current = False
    async with fixture.running():
        await asyncio.sleep(0.05)
        assert not fixture.service.is_current
        fixture.service.apply(frame(0, CreateTopic(entry())))
        await until(lambda: fixture.service.is_current)


async def test_an_agent_without_a_leader_is_not_current_before_it_counts_as_cut_off() -> None:
    """A cluster that starts anew elects within that time."""
    fixture = Fixture((), leader=None)
    fixture.service.is_current = False
    async with fixture.running():
        await asyncio.sleep(0.05)
        assert not fixture.service.is_current
