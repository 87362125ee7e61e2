"""A unix socket for HTTP: its rights, what may stand in its place, and what is removed."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.agent.process import unix_socket
from shoal.agent.process.ports import PortError
from shoal.agent.process.unix_socket import listen_at, remove


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Short: the system allows 107 bytes, and pytest's directories are long."""
    monkeypatch.chdir(tmp_path)
    return "http.sock"


def test_it_listens_for_its_user_and_group_only(path: str) -> None:
    """Whatever the umask; and the path goes with it."""
    before = os.umask(0)
    try:
        listener = listen_at(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    remove(path, listener)
    assert not os.path.exists(path)
    remove(path, listener)


def test_what_a_killed_process_left_is_replaced(path: str) -> None:
    """Nobody listens there."""
    program = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=100)
    assert stat.S_ISSOCK(os.lstat(path).st_mode)
    listener = listen_at(path)
    remove(path, listener)


def test_another_process_keeps_its_socket(path: str) -> None:
    """While it listens, even where its backlog is full; and one that has taken the path since keeps it."""
    other = listen_at(path)
    with pytest.raises(PortError, match=r"http.sock: another process listens there: stop it"):
        listen_at(path)
    other.listen(0)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(path)
    with pytest.raises(PortError, match="another process listens there"):
        listen_at(path)
    ours = socket.socket(socket.AF_UNIX)
    remove(path, ours)
    assert os.path.exists(path)
    for client in clients:
        client.close()
    remove(path, other)


def test_what_is_no_socket_is_left_alone(path: str) -> None:
    """A file, a link to a file, a directory."""
    Path(path).write_text("precious")
    with pytest.raises(PortError, match="something else than a socket: give another path"):
        listen_at(path)
    os.symlink(path, "link")
    with pytest.raises(PortError, match="something else than a socket"):
        listen_at("link")
    with pytest.raises(PortError, match="something else than a socket"):
        listen_at("/")
    assert Path(path).read_text() == "precious"


def test_what_has_taken_the_path_since_stays(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that stops takes a socket away, and nothing else; an agent that starts holds the lock."""
    ours = listen_at(path)
    os.unlink(path)
    Path(path).write_text("precious")
    remove(path, ours)
    assert Path(path).read_text() == "precious"
    assert caplog.records == []


def test_a_socket_that_cannot_be_removed_is_said(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """And keeps nobody from stopping: the next start finds that nobody listens there."""
    os.mkdir("run")
    ours = listen_at("run/http.sock")
    os.rename("run", "elsewhere")
    Path("run").write_text("")
    remove("run/http.sock", ours)
    assert [record.message for record in caplog.records] == [
        "cannot remove the socket run/http.sock: Not a directory"
    ]


@pytest.mark.parametrize("where", ["missing/http.sock", "file/http.sock", "/proc/http.sock", f"{'x' * 108}"])
def test_a_path_that_cannot_be_written_is_a_clear_refusal(path: str, where: str) -> None:
    """One line that names the flag, the path, the system's reason, and what to do."""
    Path("file").write_text("")
    with pytest.raises(PortError) as refused:
        listen_at(where)
    assert str(refused.value).startswith(f"--http-socket {where}: ")
    assert str(refused.value).endswith("give a path in a directory that exists and that this user may write")
    assert not os.path.exists(where)


def test_two_that_begin_at_once_take_turns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is locked meanwhile; who locks it for long is named."""
    monkeypatch.setattr(unix_socket, "LOCK_SECONDS", 0.0)
    holder = os.open(".", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(PortError, match=r"another process holds a lock on \."):
        listen_at(path)
    fcntl.flock(holder, fcntl.LOCK_UN)
    listener = listen_at(path)
    fcntl.flock(holder, fcntl.LOCK_EX)
    remove(path, listener)
    assert os.path.exists(path), "another agent may be about to listen there"
    os.close(holder)
    remove(path, listener)
    assert not os.path.exists(path)
