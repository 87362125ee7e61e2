"""docs/formats.md on views: its numbers are the code's, and its program reads what an agent has written."""

from __future__ import annotations

import pathlib
import random
import re
from typing import Any

from memory_disk import MemoryDisk

from shoal.agent.views import manifest
from tests.agent.views.table_desk import TableDesk, random_puts
from tests.agent.views.view_desk import DIRECTORY, TimerDesk, random_dues

TEXT = (pathlib.Path(__file__).parents[3] / "docs" / "formats.md").read_text()
SECTION = TEXT.split("## A view\n")[1].split("\n## ")[0]
FORMS = {"bytes 4": "4s", "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


def program() -> dict[str, Any]:
    (text,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    names: dict[str, Any] = {}
    exec(text, names)
    return names


async def written(disk: MemoryDisk, directory: pathlib.Path) -> pathlib.Path:
    """The files of the view, as a stopped agent leaves them."""
    view = f"{DIRECTORY}/view"
    for name in await disk.list(view):
        (directory / name).write_bytes(disk.content(f"{view}/{name}"))
    return directory


def test_the_manifest_is_documented_field_by_field() -> None:
    """Its head without a gap, and the fields of each run."""
    table = [line.strip("|").split("|") for line in SECTION.splitlines() if line.startswith("| ")]
    fields = [[cell.strip() for cell in row] for row in table if row[0].strip().isdigit()]
    assert "<" + "".join(FORMS[size] for _, size, *_ in fields) == manifest._HEAD.format
    sizes = {"4s": 4, "B": 1, "H": 2, "I": 4, "Q": 8}
    places = [sum(sizes[FORMS[size]] for _, size, *_ in fields[:number]) for number in range(len(fields))]
    assert places == [int(at) for at, *_ in fields]
    each = re.findall(r"\b(u\d\d) ", fields[-1][-1])
    assert "<" + "".join(FORMS[size] for size in each) == manifest._RUN.format


async def test_the_program_reads_a_timer_topic(tmp_path: pathlib.Path) -> None:
    """All records that the runs have, and none of a file that no manifest names."""
    desk = TimerDesk(MemoryDisk())
    await desk.open()
    rng = random.Random(1)
    for number in range(40):
        await desk.append(random_dues(rng), 100 + number)
    await desk.settle()
    view = await written(desk.disk, tmp_path)
    (view / f"{1:020d}-{2:020d}-{9_999:010d}.arrows").write_bytes(b"the rest of a crash")
    names = program()
    runs = desk.view.manifest.runs
    assert [path.name for path in names["runs_of"](view)] == [run.name.file for run in runs]
    assert len(runs) > 1
    table = names["timers"](view)
    offsets = sorted(table.column("offset").to_pylist())
    assert offsets == list(range(desk.view.manifest.applied.offset))
    await desk.close()


async def test_the_program_reads_the_rows_of_a_table(tmp_path: pathlib.Path) -> None:
    """The newest of each key, without those that were deleted."""
    desk = TableDesk(MemoryDisk())
    await desk.open()
    rng = random.Random(2)
    for _ in range(40):
        await desk.append(random_puts(rng))
    await desk.settle()
    assert desk.view.manifest.applied.offset == desk.log.end_offset
    rows = program()["rows"](await written(desk.disk, tmp_path))
    expected = [(row.key, row.value, row.offset) for row in desk.expected()]
    assert list(zip(rows["key"], rows["value"], rows["offset"], strict=True)) == expected
    await desk.close()
