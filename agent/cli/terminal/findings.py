"""A finding of `shoal doctor`."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """`level`: ok, note (works, but could be better) or problem (has to be mended)."""

    check: str
    level: str
    found: str
    advice: str = ""
