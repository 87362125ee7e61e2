"""Clusters of two versions of Shoal, which are one program that understands different levels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.agent import levels
from shoal.agent.levels import BEFORE_LEVELS, FIRST_LEVEL, Level, LevelRange
from shoal.agent.process.errors import StartError
from shoal.agent.topics.cluster_file import newest_copy
from tests.agent.agents import Agents, Running, agents_in, eventually

FORMER = BEFORE_LEVELS
PRESENT = LevelRange(FIRST_LEVEL, Level(2))
SOON_MS = 300


@pytest.fixture
async def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agents]:
    monkeypatch.setattr(levels, "RAISE_AFTER_MS", SOON_MS)
    async with agents_in(tmp_path) as made:
        yield made


async def level(running: Running) -> int:
    status, document = await running.call("GET", "/v1/cluster/level")
    assert status == 200, document
    return int(document["level"])


async def is_at(running: Running, wanted: int) -> bool:
    return await level(running) == wanted


async def raised(running: Running, to: int | None = None) -> tuple[int, Any]:
    """The answer to a raise, once there is a leader to give it: agents come and go in these tests."""
    answers: list[tuple[int, Any]] = []

    async def asked() -> bool:
        body = {} if to is None else {"level": to}
        answers.append(await running.call("POST", "/v1/cluster/level", body))
        return answers[-1][0] < 500

    await eventually(asked)
    return answers[-1]


async def is_raised(running: Running, to: int) -> bool:
    """False while the catalog's leader has not heard yet that a member has left."""
    return (await raised(running, to))[0] == 200


async def is_refused_for(running: Running, reason: str) -> bool:
    """False while the catalog's leader has not heard yet what the others understand now."""
    status, refusal = await raised(running, 2)
    assert (status, refusal["code"]) == (409, "level-refused")
    return reason in refusal["detail"]


async def three(agents: Agents, understood: LevelRange, **flags: object) -> list[Running]:
    """A cluster of three with a topic, of one version."""
    made = await agents.cluster(3, levels=understood, **flags)
    status, document = await made[0].call("PUT", "/v1/topics/orders", {"partitions": 1})
    assert status == 201, document
    return made


async def again(agents: Agents, old: Running, understood: LevelRange, others: list[Running]) -> Running:
    """The agent's host after an upgrade, or after a roll-back."""
    await old.crash()
    addresses = [await other.gossip_address() for other in others]
    name = str(old.agent.config.name)
    return await agents.start(name, levels=understood, expect=3, join=addresses).until_ready()


async def refused(agents: Agents, name: str, understood: LevelRange, other: Running) -> str:
    """What keeps the agent from starting."""
    address = await other.gossip_address()
    with pytest.raises((StartError, BaseExceptionGroup)) as caught:
        await agents.start(name, levels=understood, expect=2, join=[address]).until_ready()
    error: BaseException = caught.value
    if isinstance(error, BaseExceptionGroup):
        assert error.split(StartError)[1] is None, error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


async def test_a_rolling_upgrade_raises_the_level_once_all_have_come_and_no_way_leads_back(
    agents: Agents,
) -> None:
    """Before that the former version comes back whenever it likes."""
    one, two, three_ = await three(agents, FORMER)
    one = await again(agents, one, PRESENT, [two, three_])
    two = await again(agents, two, PRESENT, [one, three_])
    await eventually(lambda: is_refused_for(one, "level 2: a2 understands 1; upgrade them"))
    one = await again(agents, one, FORMER, [two, three_])
    assert await level(one) == 1
    one = await again(agents, one, PRESENT, [two, three_])
    three_ = await again(agents, three_, PRESENT, [one, two])
    for running in (one, two, three_):
        await eventually(lambda running=running: is_at(running, 2))
    by_id = sorted((running.agent.agent_id, str(running.agent.config.name)) for running in (one, two, three_))
    expected = [(name, 1, 2) for _, name in by_id]

    async def knows_all() -> bool:  # the leader of the catalog did when it raised; gossip tells the others
        _, document = await one.call("GET", "/v1/cluster/level")
        return expected == [(item["name"], item["lowest"], item["highest"]) for item in document["members"]]

    await eventually(knows_all)
    await three_.crash()
    reason = await refused(agents, "a2", FORMER, one)
    said = "cluster shoal: the cluster is at level 2, and the agent understands 1: install"
    assert reason.startswith(said)
    three_ = await again(agents, three_, PRESENT, [one, two])
    await eventually(lambda: is_at(three_, 2))


async def test_an_agent_of_a_former_version_does_not_join_a_raised_cluster(agents: Agents) -> None:
    """It says so and leaves, so that nobody misses it; its directory is as empty as it came."""
    first = await agents.alone("first", levels=PRESENT)
    await eventually(lambda: is_at(first, 2))
    reason = await refused(agents, "late", FORMER, first)
    assert "cannot join cluster shoal: the cluster is at level 2, and the agent understands 1" in reason
    await eventually(lambda: has_status(first, "late", "left"))
    address = await first.gossip_address()
    late = await agents.start("late", levels=PRESENT, expect=2, join=[address]).until_ready()
    await eventually(lambda: is_at(late, 2))


async def test_an_agent_two_levels_above_does_not_join_and_says_why(agents: Agents) -> None:
    """It cannot read what the cluster writes."""
    first = await agents.alone("first", levels=FORMER)
    reason = await refused(agents, "early", LevelRange(Level(2), Level(3)), first)
    assert "the cluster is at level 1, and the agent understands 2 to 3: install an older version" in reason


async def test_a_held_level_rises_by_hand_only(agents: Agents) -> None:
    """Any agent takes the request; a second one finds it done."""
    one, two, three_ = await three(agents, PRESENT, hold_level=True)
    for running in (one, two, three_):
        assert await level(running) == 1
    status, document = await raised(three_)
    assert (status, document["level"], document["possible"]) == (200, 2, 2)
    assert all(member["holds"] for member in document["members"])
    assert (await raised(one, 2))[0] == 200
    for running in (one, two, three_):
        await eventually(lambda running=running: is_at(running, 2))
    status, refusal = await raised(two, 1)
    assert (status, refusal["code"]) == (409, "level-refused")
    assert "no level is ever lowered" in refusal["detail"]


async def test_a_level_is_not_raised_while_an_agent_of_the_former_version_is_down(agents: Agents) -> None:
    """It would not come back. Taken out of the pool for good, it is none to a raise by hand, and none at all
    once its replicas wait for it no longer."""
    one, two, gone = await three(agents, FORMER)
    one = await again(agents, one, PRESENT, [two, gone])
    two = await again(agents, two, PRESENT, [one, gone])
    name = str(gone.agent.config.name)
    await gone.crash()
    status, refusal = await raised(one, 2)
    assert (status, refusal["code"]) == (409, "level-refused")
    assert f"{name} understands 1" in refusal["detail"]
    assert "`shoal cluster raise-level --without NAME`" in refusal["detail"]
    await eventually(lambda: has_status(one, name, "failed"))
    assert await level(one) == 1
    assert (await one.call("POST", f"/v1/members/{name}/force-leave"))[0] in (200, 204)
    status, document = await one.call("GET", "/v1/cluster/level")
    assert (document["level"], document["possible"]) == (1, 2)
    assert [member["name"] for member in document["members"] if member["status"] == "left"] == [name]
    await eventually(lambda: is_raised(one, 2))
    await eventually(lambda: is_at(two, 2))


async def test_an_agent_that_was_away_when_the_level_rose_ends_and_says_why(agents: Agents) -> None:
    """Its directory is of the level before, and nobody links with it: it asks. The new version goes on with
    that directory, and has what was committed meanwhile."""
    one, two, gone = await three(agents, FORMER)
    name = str(gone.agent.config.name)
    await gone.crash()
    one = await again(agents, one, PRESENT, [two])
    two = await again(agents, two, PRESENT, [one])
    await eventually(lambda: has_status(one, name, "failed"))
    assert (await one.call("POST", f"/v1/members/{name}/force-leave"))[0] in (200, 204)
    await eventually(lambda: is_raised(one, 2))
    await eventually(lambda: is_at(two, 2))
    assert (await two.call("PUT", "/v1/topics/later", {"partitions": 1}))[0] == 201
    reason = await refused(agents, name, FORMER, one)
    assert reason.startswith("cluster shoal: the cluster is at level 2, and the agent understands 1: install")
    await eventually(lambda: has_status(one, name, "left"))
    back = await again_after_refusal(agents, name, one)
    await eventually(lambda: is_at(back, 2))
    await eventually(lambda: knows_topic(back, "later"))


async def again_after_refusal(agents: Agents, name: str, other: Running) -> Running:
    address = await other.gossip_address()
    return await agents.start(name, levels=PRESENT, expect=3, join=[address]).until_ready()


async def knows_topic(running: Running, name: str) -> bool:
    return (await running.call("GET", f"/v1/topics/{name}"))[0] == 200


async def test_an_agent_two_levels_above_does_not_open_a_directory_of_the_first_level(agents: Agents) -> None:
    """It takes no part in gossip, and leaves the directory as it was."""
    first = await agents.alone("first", levels=FORMER)
    await first.crash()
    before = {path: path.read_bytes() for path in data_files(first)}
    with pytest.raises(StartError, match="understands 2 to 3: install an older version of Shoal"):
        await agents.start("first", levels=LevelRange(Level(2), Level(3))).until_ready()
    assert {path: path.read_bytes() for path in data_files(first)} == before
    assert await level(await agents.alone("first", levels=FORMER)) == 1


def data_files(running: Running) -> list[Path]:
    directory = Path(running.agent.config.data)
    return [directory / name for name in ("cluster.a", "cluster.b")]


async def has_status(running: Running, name: str, status: str) -> bool:
    _, document = await running.call("GET", "/v1/members")
    return any(member["name"] == name and member["status"] == status for member in document["members"])


@pytest.mark.parametrize(
    "body", [{"level": 0}, {"level": "2"}, {"level": True}, {"level": 2.5}, {"to": 2}, [2]]
)
async def test_a_level_that_is_none_is_refused(agents: Agents, body: object) -> None:
    """Nothing changes."""
    first = await agents.alone("first", levels=PRESENT, hold_level=True)
    status, refusal = await first.call("POST", "/v1/cluster/level", body)
    assert (status, refusal["code"]) == (400, "bad-request")
    assert await level(first) == 1


async def test_a_recovery_by_force_where_the_rise_was_not_heard_of_keeps_the_level(agents: Agents) -> None:
    """The survivor was away when the level rose, by hand, and all who made it rise are gone. Another agent
    has lived at the higher level: its directory may hold what the former version does not understand."""
    one, two, survivor = await three(agents, PRESENT, hold_level=True)
    flags: dict[str, Any] = {"levels": PRESENT, "expect": 3, "hold_level": True}
    join = [await one.gossip_address()]
    other = await agents.start("a3", join=join, **flags).until_ready()
    await survivor.crash()
    await eventually(lambda: is_raised(one, 2))
    await eventually(lambda: has_stored(other, 2))
    for running in (other, one, two):
        await running.crash()
    survivor = agents.start("a2", **flags)
    join = [await survivor.gossip_address()]
    await eventually(lambda: recovers_catalog(survivor))
    await survivor.until_ready()
    other = await agents.start("a3", join=join, **flags).until_ready()
    for running in (survivor, other):
        await eventually(lambda running=running: is_at(running, 2))
    await other.crash()
    assert "the cluster is at level 2, and the agent understands 1" in await refused(
        agents, "a3", FORMER, survivor
    )


async def has_stored(running: Running, wanted: int) -> bool:
    record = newest_copy([path.read_bytes() for path in data_files(running)])
    return record is not None and record.level == wanted


async def recovers_catalog(running: Running) -> bool:
    """False while it is refused: its log is still being opened."""
    body = {"topic": "_catalog", "partition": 0, "accept_data_loss": True}
    return (await running.call("POST", "/v1/agent/recover", body))[0] == 200
