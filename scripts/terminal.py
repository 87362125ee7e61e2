"""Progress for people: bars and steps on a terminal, single quiet lines when the output goes to a file.

Law of this file: standard library only; it draws, it decides nothing.
"""

from __future__ import annotations

import os
import sys
import time

BAR_WIDTH = 28
# Without a terminal a bar is one line per this share, so that a log stays readable.
QUIET_SHARE = 0.25


def is_interactive() -> bool:
    """True when someone watches: a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"


def _paint(code: str, text: str) -> str:
    if not is_interactive() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{code}m{text}\033[0m"


def step(text: str) -> None:
    """One step of the story begins."""
    clear()
    sys.stderr.write(_paint("1;36", "==> ") + _paint("1", text) + "\n")
    sys.stderr.flush()


def line(text: str) -> None:
    """A line of talk."""
    clear()
    sys.stderr.write(f"    {text}\n")
    sys.stderr.flush()


def problem(text: str) -> None:
    """The one clear line on failure."""
    clear()
    sys.stderr.write(_paint("1;31", "error: ") + text + "\n")
    sys.stderr.flush()


def clear() -> None:
    """Removes a bar that is being drawn."""
    if is_interactive():
        sys.stderr.write("\r\033[K")


class Bar:
    """A progress bar: `update(share, note)` with share in 0..1."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._reported = -QUIET_SHARE

    def update(self, share: float, note: str = "") -> None:
        share = max(0.0, min(1.0, share))
        seconds = int(time.monotonic() - self._started)
        if is_interactive():
            full = int(share * BAR_WIDTH)
            bar = "#" * full + "-" * (BAR_WIDTH - full)
            sys.stderr.write(f"\r\033[K    {self._label} [{bar}] {share:4.0%} {seconds:3d} s {note}")
            if share >= 1.0:
                sys.stderr.write("\n")
        elif share - self._reported >= QUIET_SHARE or (share >= 1.0 > self._reported):
            sys.stderr.write(f"    {self._label} {share:4.0%} after {seconds} s {note}\n")
            self._reported = share
        sys.stderr.flush()
