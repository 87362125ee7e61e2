"""An agent with a directory of the level before: a link's word makes it ask, a member's document ends it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from shoal.agent.bootstrap import outgrown_watch
from shoal.agent.bootstrap.introduction import Introduction, IntroductionError
from shoal.agent.bootstrap.outgrown_watch import OutgrownWatch
from shoal.agent.levels import BEFORE_LEVELS, Level, LevelRange
from shoal.agent.members.tags import Peer
from shoal.agent.process.errors import StartError

OURS, THEIRS = b"o" * 16, b"t" * 16
PATIENCE_S = 40


class Asked:
    """Answers one question after the other, and remembers who was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int | IntroductionError) -> None:
        self.answers = list(answers)
        self.urls: list[list[str]] = []
        self.roster: Any = self
        monkeypatch.setattr(outgrown_watch, "ask", self.ask)
        monkeypatch.setattr(outgrown_watch, "PAUSE_S", 0)

    def starting_peers(self) -> list[Peer]:
        return [Peer("a", OURS, "http://a"), Peer("x", THEIRS, "http://x"), Peer("b", OURS, "http://b")]

    async def ask(self, urls: list[str], cluster_id: bytes) -> Introduction:
        assert cluster_id == OURS
        self.urls.append(sorted(urls))
        answer = self.answers.pop(0)
        if isinstance(answer, IntroductionError):
            raise answer
        return Introduction("a", "prod", OURS, ("a",), Level(answer))

    def watch(self, levels: LevelRange = BEFORE_LEVELS) -> OutgrownWatch:
        return OutgrownWatch(OURS, self.roster, random.Random(1), levels)


async def test_an_agent_that_the_cluster_has_outgrown_ends_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members of its own cluster are asked, and no other."""
    asked = Asked(monkeypatch, 2)
    watch = asked.watch()
    watch.suspect()
    with pytest.raises(
        StartError, match=r"cluster prod: the cluster is at level 2, .* understands 1: install"
    ):
        await asyncio.wait_for(watch.run(), PATIENCE_S)
    assert asked.urls == [["http://a", "http://b"]]


async def test_a_strangers_word_alone_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time somebody says so a member is asked: the first cannot answer, the second says otherwise."""
    asked = Asked(monkeypatch, IntroductionError("busy"), 1, 2)
    watch = asked.watch()
    task = asyncio.create_task(watch.run())
    for count in (1, 2):
        watch.suspect()
        while len(asked.urls) < count:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
    watch.suspect()
    with pytest.raises(StartError):
        await asyncio.wait_for(task, PATIENCE_S)
    assert len(asked.urls) == 3


async def test_nobody_is_asked_before_anybody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of one version costs nothing."""
    asked = Asked(monkeypatch)
    task = asyncio.create_task(asked.watch().run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked.urls == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
