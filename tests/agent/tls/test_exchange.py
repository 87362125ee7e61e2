"""Files that are exchanged while an agent runs: what the log says of them."""

from __future__ import annotations

import logging
import pathlib

import pytest
from certificates import AGENT, CLUSTER, Authority, write_files

from shoal.agent.tls.reload import load_tls


async def test_a_certificate_that_clients_refuse_is_told_of(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and when it takes the place of one that they take; not at looks in between."""
    caplog.set_level(logging.INFO)
    authority = Authority()

    def told() -> list[str]:
        found = [record.__dict__["event"] for record in caplog.records]
        caplog.clear()
        return found

    elsewhere = authority.issue(AGENT, hosts=("10.0.0.9",))
    settings = write_files(tmp_path, elsewhere, authority.pem)
    state = await load_tls(settings, CLUSTER, "127.0.0.1")
    assert state is not None
    assert told() == ["tls-host-unnamed"]
    await state.look()
    assert told() == []
    write_files(tmp_path, authority.agent(), authority.pem)
    await state.look()
    assert told() == ["tls-exchanged"]
    write_files(tmp_path, elsewhere, authority.pem)
    await state.look()
    assert told() == ["tls-exchanged", "tls-host-unnamed"]
