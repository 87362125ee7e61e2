"""Files of secrets that are no regular ones, and tokens that go over a network in the open."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib

import pytest
from secure_cluster import TOKEN, Files
from secure_cluster import files as files

from shoal import AsyncClient, ClientError
from shoal.credentials import _warn_of_the_open, tell_in_the_open, token_of


def test_a_token_comes_out_of_a_pipe_once(files: Files, tmp_path: pathlib.Path) -> None:
    """As a shell makes one of `<(command)`. It says what it says once, and nobody waits for it again."""
    reader, writer = os.pipe()
    os.write(writer, f"{TOKEN}\n".encode())
    os.close(writer)
    assert token_of(f"@/dev/fd/{reader}").reveal() == TOKEN
    os.close(reader)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o644)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(pipe.write_text, TOKEN)
        secret = token_of(f"@{pipe}")
    os.utime(pipe)
    assert secret.reveal() == TOKEN


def test_nobody_waits_for_a_pipe_without_end(
    files: Files, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a writer, one whose writer goes on, and a device without end. Certificates, which TLS opens
    again, have to be files."""
    monkeypatch.setattr("shoal.credentials.PIPE_S", 0.05)
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    with pytest.raises(ClientError, match=r"the token: .*pipe is a pipe that nobody wrote to the end within"):
        token_of(f"@{pipe}")
    reader, writer = os.pipe()
    os.write(writer, TOKEN.encode())
    with pytest.raises(ClientError, match="that nobody wrote to the end within"):
        token_of(f"@/dev/fd/{reader}")
    os.close(reader)
    os.close(writer)
    with pytest.raises(ClientError, match="has more than"):
        token_of("@/dev/zero")
    for given in ({"ca": pipe}, {"certificate": pipe}, {"certificate": files.certificate, "key": pipe}):
        with pytest.raises(ClientError, match="is no regular file, and it is read again: name one"):
            AsyncClient("https://127.0.0.1:1", **given)


@pytest.mark.parametrize(
    ("url", "is_told"),
    [
        ("http://10.0.0.5:7070", True),
        ("http://example.com", True),
        ("https://10.0.0.5:7070", False),
        ("http://127.0.0.2:1", False),
        ("http://[::1]:1", False),
        ("http://localhost:1", False),
        ("unix:///run/shoal", False),
    ],
)
def test_a_token_that_goes_over_a_network_in_the_open_is_told_once(
    url: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By a line without it, however many agents are asked."""
    tell_in_the_open.cache_clear()
    _warn_of_the_open.cache_clear()
    tell_in_the_open(url)
    tell_in_the_open(f"{url}0")
    assert [record.message[:33] for record in caplog.records] == [
        "the token is sent in the open: ag"
    ] * is_told
