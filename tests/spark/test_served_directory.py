"""Directories of drivers: gone with their owners, however those end, and nobody else's is touched."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing

import pytest

from shoal.spark.ship import served_directory
from shoal.spark.ship.served_directory import PREFIX, REMOVED_MAX, ServedDirectory, remove_those_left_behind

DRIVER = """
import pathlib, time
from shoal.spark.ship.served_directory import ServedDirectory
served = ServedDirectory()
pathlib.Path(served.name, "shoal-0.zip").write_bytes(b"zip")
print(served.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def driver(place: pathlib.Path) -> Iterator[tuple[subprocess.Popen[str], pathlib.Path]]:
    """A process that serves, and its directory."""
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, pathlib.Path(process.stdout.readline().strip())
        process.kill()


def left_behind(place: pathlib.Path, name: str) -> pathlib.Path:
    """As a killed driver leaves it."""
    directory = place / f"{PREFIX}{name}"
    directory.mkdir(0o700)
    (directory / "shoal-0.zip").write_bytes(b"zip")
    return directory


def test_what_a_killed_driver_left_goes_with_the_next_start(
    driver: tuple[subprocess.Popen[str], pathlib.Path],
) -> None:
    """And not before it is killed, which no end of the process can tell."""
    process, directory = driver
    ServedDirectory().close()
    assert (directory / "shoal-0.zip").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (directory / "shoal-0.zip").exists()
    ServedDirectory().close()
    assert not directory.exists()


def test_its_own_directory_stays(place: pathlib.Path) -> None:
    """Where one process serves twice, too."""
    with closing(ServedDirectory()) as first, closing(ServedDirectory()) as second:
        assert sorted(map(str, place.iterdir())) == sorted([first.name, second.name])
        assert all(directory.stat().st_mode & 0o777 == 0o700 for directory in place.iterdir())
    assert list(place.iterdir()) == []


def test_what_may_be_somebody_elses_is_left_alone(place: pathlib.Path) -> None:
    """Links, files, directories that others may enter, and such as hold something else."""
    target = place / "target"
    target.mkdir(0o700)
    (target / "shoal-0.zip").write_bytes(b"zip")
    (place / f"{PREFIX}link").symlink_to(target)
    (place / f"{PREFIX}file").write_bytes(b"")
    open_to_all = left_behind(place, "open")
    open_to_all.chmod(0o755)
    kept = left_behind(place, "kept")
    (kept / "notes").write_bytes(b"")
    before = sorted(place.rglob("*"))
    remove_those_left_behind()
    assert sorted(place.rglob("*")) == [path for path in before if path != kept / "shoal-0.zip"]


def test_another_users_is_left_alone(place: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though this user may be able to remove it."""
    directory = left_behind(place, "a")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_those_left_behind()
    assert directory.exists()


def test_one_start_removes_so_many(place: pathlib.Path) -> None:
    """The next one removes the rest."""
    for number in range(REMOVED_MAX + 3):
        left_behind(place, f"{number:03}")
    remove_those_left_behind()
    assert len(list(place.iterdir())) == 3
    remove_those_left_behind()
    assert list(place.iterdir()) == []


def test_a_directory_that_was_taken_for_left_behind_is_made_again(
    place: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver may come between its making and its lock; one that always does is an error."""
    proper, taken = served_directory._lock_of, []

    def too_late(path: str) -> int | None:
        if len(taken) < times:
            taken.append(path)
            os.rmdir(path)
        return proper(path)

    monkeypatch.setattr(served_directory, "_lock_of", too_late)
    times = 2
    with closing(ServedDirectory()) as served:
        assert [pathlib.Path(served.name)] == list(place.iterdir())
    taken.clear()
    times = 3
    with pytest.raises(OSError, match="others remove"):
        ServedDirectory()
