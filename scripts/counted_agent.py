"""An agent that counts its calls: what scripts/bench calls starts in place of the command `shoal`.

Law of this file: it runs the command line as it is and looks at it with sys.setprofile, from SIGUSR1 until
SIGUSR2, which writes down what was seen. The first argument is the file for that.

An append reaches from the moment at which the front has received one to that at which it has received the
next. What belongs to no append, like a heartbeat, counts in the one during which it happens.

Moves from file to file are counted in two ways, both over calls of Python functions alone:

    changes  calls of a function of another file than the call before, whoever made the two
    into     calls of a function by one of another file; its return is not counted
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

PRODUCT_ROOMS = {"agent", "membership", "replication", "segment_store", "shoal"}
LOOP_FILES = {"event_loop.py", "direct_loop.py"}
"""Of the product, but they do what asyncio's loop does: what they call begins a section."""
BEFORE_ALL = "event loop"


@dataclasses.dataclass
class Append:
    """What was called from the arrival of one append to that of the next."""

    python: int = 0
    c: int = 0
    changes: int = 0
    into: int = 0
    functions: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    """Calls by section, which is the function that the loop called, and by file and function."""


class CallCounter:
    """Counts from `begin` to `end`, in the thread of the loop."""

    def __init__(self) -> None:
        self._appends: list[Append] = []
        self._append = Append()
        self._root: FrameType | None = None
        self._section = BEFORE_ALL
        self._last_file = ""
        self._places: dict[CodeType, tuple[str, bool]] = {}

    def begin(self) -> None:
        """From the next append on."""
        sys.setprofile(self._seen)

    def end(self) -> list[Append]:
        """Those that were seen from their begin to their end."""
        sys.setprofile(None)
        return self._appends[1:]

    def _seen(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return":
            if frame is self._root:
                self._root, self._section = None, BEFORE_ALL
        elif event == "call":
            self._called(frame)
        elif event == "c_call":
            self._append.c += 1
            self._append.functions[self._section, f"C {argument.__qualname__}"] += 1

    def _called(self, frame: FrameType) -> None:
        code, caller = frame.f_code, frame.f_back
        place = self._places.get(code)
        if place is None:
            place = self._places[code] = _place(code)
        name, is_product = place
        if code.co_name == "buffer_updated" and "/agent/http/" in code.co_filename:
            self._appends.append(self._append)
            self._append = Append()
        if self._root is None and is_product:
            self._root, self._section = frame, code.co_qualname
        append, file = self._append, code.co_filename
        append.python += 1
        append.into += caller is not None and caller.f_code.co_filename != file
        append.changes += self._last_file != file
        append.functions[self._section, name] += 1
        self._last_file = file


def _place(code: CodeType) -> tuple[str, bool]:
    """How a function is named in the table, and whether it begins a section."""
    parts = pathlib.PurePath(code.co_filename).parts
    is_product = bool(PRODUCT_ROOMS & set(parts[:-1])) and "site-packages" not in parts
    file = "/".join(parts[-2:])
    return f"{file} {code.co_qualname}", is_product and parts[-1] not in LOOP_FILES


def main() -> None:
    """Run the command line with the arguments behind the file's name."""
    path = pathlib.Path(sys.argv[1])
    sys.argv = ["shoal", *sys.argv[2:]]
    counter = CallCounter()

    def write(*_: object) -> None:
        appends = [
            dataclasses.asdict(append) | {"functions": [[*key, n] for key, n in append.functions.items()]}
            for append in counter.end()
        ]
        new = path.with_suffix(".new")
        new.write_text(json.dumps(appends))
        os.replace(new, path)

    signal.signal(signal.SIGUSR1, lambda *_: counter.begin())
    signal.signal(signal.SIGUSR2, write)
    from shoal.agent.cli.main import run

    run()


if __name__ == "__main__":
    main()
