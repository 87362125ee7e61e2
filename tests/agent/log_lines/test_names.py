"""Names of topics and agents, as log lines and errors show them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.log_lines.names import AGENTS_MAX, Names, agent_name, topic_name
from shoal.agent.topics.catalog import Catalog, ConfirmDeletion, CreateTopic, DeleteTopic
from shoal.agent.topics.entries import PartitionBirth, TopicEntry
from shoal.agent.topics.settings import TopicSettings
from shoal.format.hash_ranges import HashRange

ORDERS = bytes.fromhex("3f2a91c0" + "00" * 12)
HERRING, COD = "9c1e4f2a" + "0" * 24, "77aa77aa" + "0" * 24


def a_catalog() -> Catalog:
    catalog = Catalog()
    birth = PartitionBirth(HashRange(0, 2**32 - 1), (HERRING,))
    entry = TopicEntry("orders", ORDERS, TopicSettings(partitions=1), (birth,), 0)
    assert catalog.apply(0, CreateTopic(entry)) == "done"
    return catalog


def test_what_nobody_has_told_is_shown_in_short() -> None:
    """Outside of any agent, and for ids that are not known yet."""
    assert str(GroupId(ORDERS, 4)) == "topic 3f2a91c0/4"
    assert topic_name(ORDERS) == "topic 3f2a91c0"
    assert agent_name(HERRING) == "agent 9c1e4f2a"
    assert str(CATALOG_GROUP) == "_catalog"


def test_a_topic_has_its_name_while_the_catalog_knows_it_alive_or_deleted() -> None:
    """Created, deleted, and forgotten once every holder has confirmed."""
    catalog, names = Catalog(), Names()
    names.find_topic = lambda topic_id: catalog.name_of(topic_id)
    with names.in_use():
        assert str(GroupId(ORDERS, 0)) == "topic 3f2a91c0/0"
        catalog = a_catalog()
        assert str(GroupId(ORDERS, 0)) == "orders/0"
        assert catalog.apply(1, DeleteTopic(ORDERS)) == "done"
        assert str(GroupId(ORDERS, 0)) == "deleted topic orders/0"
        assert topic_name(ORDERS) == "deleted topic orders"
        assert catalog.apply(2, ConfirmDeletion(ORDERS, HERRING)) == "done"
        assert topic_name(ORDERS) == "topic 3f2a91c0"


def test_an_agent_has_the_name_it_gossiped_last() -> None:
    """Renamed at a restart; and it keeps the name when it has left, which nobody takes back."""
    names = Names()
    with names.in_use():
        names.learn_agent(HERRING, "herring")
        assert agent_name(HERRING) == "herring"
        names.learn_agent(HERRING, "sild")
        assert (agent_name(HERRING), agent_name(COD)) == ("sild", "agent 77aa77aa")
        names.learn_agent(HERRING, None)
        assert agent_name(HERRING) == "sild"


def test_agents_of_one_name_are_told_apart() -> None:
    """One that lost its disk, and its successor."""
    names = Names()
    names.learn_agent(HERRING, "herring")
    names.learn_agent(COD, "herring")
    assert (names.agent(HERRING), names.agent(COD)) == ("herring (9c1e4f2a)", "herring (77aa77aa)")


@pytest.mark.parametrize("text", ["", "a\nforged line", "\x1b[31mred", "n" * 65])
def test_a_tag_that_is_no_name_is_not_taken(text: str) -> None:
    """Whoever reaches the gossip port writes tags."""
    names = Names()
    names.learn_agent(HERRING, text)
    assert names.agent(HERRING) == "agent 9c1e4f2a"


@pytest.mark.parametrize("text", ["", "orders", "no such agent", "9c1e"])
def test_a_text_that_is_no_known_id_is_shown_as_it_is(text: str) -> None:
    """By chance a short one, or one of somebody else's."""
    names = Names()
    names.learn_agent(HERRING, "herring")
    assert names.agent(text) == f"agent {text[:8]}"


def test_agents_are_remembered_up_to_a_bound() -> None:
    """The one that was heard of longest ago makes way."""
    names = Names()
    names.learn_agent(HERRING, "herring")
    names.learn_agent(COD, "cod")
    names.learn_agent(HERRING, "herring")
    for number in range(AGENTS_MAX - 1):
        names.learn_agent(f"{number:032x}", f"agent-{number}")
    assert (names.agent(HERRING), names.agent(COD)) == ("herring", "agent 77aa77aa")


async def test_agents_of_one_process_do_not_mix(caplog: pytest.LogCaptureFixture) -> None:
    """Tasks and callbacks show the names of the agent that began them, whoever runs beside them."""
    shown: dict[str, list[str]] = {"herring": [], "sild": []}

    def note(called: str) -> None:
        shown[called].append(agent_name(HERRING))

    async def live(called: str) -> None:
        names = Names()
        names.learn_agent(HERRING, called)
        with names.in_use():
            asyncio.get_running_loop().call_soon(note, called)
            for _ in range(3):
                await asyncio.sleep(0)
                note(called)
            await asyncio.to_thread(note, called)
            logging.getLogger(__name__).warning("hears of %s", agent_name(HERRING))

    await asyncio.gather(live("herring"), live("sild"))
    assert shown == {called: [called] * 5 for called in shown}
    assert sorted(caplog.messages) == ["hears of herring", "hears of sild"]
    assert agent_name(HERRING) == "agent 9c1e4f2a"
