"""docs/formats.md is the only description for those who write a reader: its numbers are the code's."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

from shoal.format import arrow_stream, batch, producer_table

TEXT = (pathlib.Path(__file__).parents[3] / "docs" / "formats.md").read_text()
SIZES = {"bytes 4": 4, "bytes 16": 16, "bytes 24": 24, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "i64": 8}


def table_below(heading: str) -> list[list[str]]:
    """The cells of the first table of a section."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in row] for row in rows[2:]]


def test_the_stamp_is_documented_field_by_field() -> None:
    """Offsets and sizes of the table leave no gap, and make the struct that the code packs."""
    rows = table_below("The stamp")
    position = 0
    for offset, size, _name, *_ in rows:
        assert int(offset) == position
        position += SIZES[size]
    assert position == batch.STAMP_BYTES
    forms = {"bytes 4": "4s", "bytes 16": "16s", "bytes 24": "24s", "u8": "B", "u16": "H", "u32": "I"}
    forms |= {"u64": "Q", "i64": "q"}
    assert "<" + "".join(forms[size] for _, size, *_ in rows) == batch._STAMP.format


def test_kinds_and_flags_are_documented() -> None:
    """Every number that may stand in a stamp has its line."""
    rows = table_below("Kinds and flags")
    kinds = {int(number): name for what, number, name, *_ in rows if what == "kind"}
    flags = {int(number): name for what, number, name, *_ in rows if what == "flag"}
    assert kinds == {kind.value: kind.name for kind in batch.Kind}
    assert flags == {flag.value: flag.name for flag in batch.Flag if flag}


def test_bounds_are_documented() -> None:
    """Whoever writes a producer finds the limits that an agent enforces."""
    rows = dict(row[:2] for row in table_below("Bounds"))
    bounds = {name: int(re.sub(r"\D", "", value)) for name, value in rows.items()}
    known = vars(arrow_stream) | vars(batch) | vars(producer_table)
    assert bounds == {name: known[name] for name in bounds}
    assert len(bounds) >= 5


def test_the_documented_check_of_a_frame_works(make_frame: Callable[..., batch.Frame]) -> None:
    """The program in the document accepts our frames and finds a flipped bit."""
    (program, _) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    data = make_frame().data
    assert names["verify"](data, b"c" * 16, b"t" * 16, 3)
    assert not names["verify"](data, b"c" * 16, b"t" * 16, 4)
    assert not names["verify"](data[:-1] + bytes([data[-1] ^ 1]), b"c" * 16, b"t" * 16, 3)
