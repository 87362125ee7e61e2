"""The data directory: whose it is, and what becomes of it when that is not known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.agent.durable.data_directory import settle_identity, wipe
from shoal.agent.process.errors import StartError
from tests.agent.agents import config


def test_logs_without_an_identity_are_not_taken_over(tmp_path: Path) -> None:
    """A new agent among another one's logs would found a cluster beside the records it should serve."""
    settings = config(tmp_path)
    assert settle_identity(settings, None).name == tmp_path.name
    (tmp_path / "topics").mkdir()
    assert settle_identity(settings, None).cluster_id is None
    (tmp_path / "topics" / ("0" * 32)).mkdir()
    with pytest.raises(StartError, match=r"holds logs but not the identity .* restore"):
        settle_identity(settings, None)


def test_a_wipe_that_a_crash_cuts_short_can_be_told_from_a_lost_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The identity goes last."""
    (tmp_path / "topics").mkdir()
    for name in ("identity.a", "cluster", "identity.b", "replicas.a", "lock"):
        (tmp_path / name).write_bytes(b"x")
    gone: list[str] = []
    unlink = os.unlink

    def remember(path: str) -> None:
        gone.append(Path(path).name)
        unlink(path)

    monkeypatch.setattr(os, "unlink", remember)
    wipe(str(tmp_path))
    assert sorted(gone[-2:]) == ["identity.a", "identity.b"]
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
