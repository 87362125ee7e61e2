"""The rooms hold: nobody imports what its room may not, nothing goes in a circle, no room is crowded."""

from __future__ import annotations

import pathlib

import pytest
import rooms
from rooms import COMMON, FILE_ROOMS, FILES_MAX, LINES_MAX, ROOMS, ROOT, imports, product_files, room_of

ALLOWED = {room: frozenset(others.split()) for room, others in ROOMS.items()}


def test_every_file_stands_in_a_room_and_no_room_is_empty() -> None:
    """The table and the folders are the same."""
    standing = {room_of(path) for path in product_files()}
    assert standing == set(ROOMS)
    assert [path for path in FILE_ROOMS if not (ROOT / path).exists()] == []


def test_rooms_import_what_they_may() -> None:
    """Whoever needs another room says so in the table, where it is seen."""
    wrong = [
        f"{item.path}:{item.line} imports {item.imported}, but {room_of(item.path)} may not"
        for item in imports()
        if (other := room_of(item.imported)) != room_of(item.path)
        and other not in COMMON | ALLOWED[room_of(item.path)]
    ]
    assert wrong == []


def test_no_permission_is_left_over() -> None:
    """An arrow that is gone does not come back unseen."""
    used = {(room_of(item.path), room_of(item.imported)) for item in imports()}
    left = [
        f"{room} -> {other}"
        for room, others in ALLOWED.items()
        for other in others
        if (room, other) not in used
    ]
    assert sorted(left) == []


def test_arrows_point_down() -> None:
    """The table is in the order of its floors, so there is no circle."""
    floors = {room: number for number, room in enumerate(ROOMS)}
    up = [
        f"{room} -> {other}"
        for room, others in ALLOWED.items()
        for other in others
        if floors[other] <= floors[room]
    ]
    assert up == []
    assert [room for room in COMMON if ALLOWED[room]] == []
    others = {room_of(item.imported) for item in imports() if room_of(item.path) in COMMON}
    assert others <= COMMON


@pytest.mark.parametrize("door", ["agent/http"])
def test_a_front_door_knows_the_interface_alone(door: str) -> None:
    """What more it needs of the agent belongs into agent/interface.py, for all doors."""
    behind = {"agent/interface", "agent/events", "membership/interface"}
    for room, others in ALLOWED.items():
        if room == door or room.startswith(f"{door}/"):
            assert {other for other in others if not other.startswith(door)} <= behind, room


def test_no_room_is_crowded() -> None:
    """So many files that a reader can keep in mind."""
    folders: dict[str, list[str]] = {}
    for path in product_files():
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    files = {
        folder: len([path for path in paths if not path.endswith("__init__.py")])
        for folder, paths in folders.items()
    }
    assert {folder: count for folder, count in files.items() if count > FILES_MAX} == {}
    lines = {
        folder: sum((ROOT / path).read_text().count("\n") for path in paths)
        for folder, paths in folders.items()
    }
    assert {folder: count for folder, count in lines.items() if count > LINES_MAX} == {}


def test_no_file_is_called_by_a_gerund() -> None:
    """A file is called by what it holds, not by what happens in it."""
    fine = {"ring", "keyring", "row_encoding", "sealing", "pending", "blocking"}
    named = {pathlib.PurePath(path).stem for path in product_files()}
    assert {name for name in named if name.endswith("ing")} == fine


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """For people: python tests/rooms.py."""
    rooms.main()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(ROOMS) + 2
    assert printed[-1].startswith(f"{len(ROOMS)} rooms, {len(product_files())} files")
