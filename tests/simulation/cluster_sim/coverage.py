"""Which functions of the product the seeds have run: a table by package, and the names of the others.

Law of this file: it counts functions, not lines. A function is known by its file and its first line. What a
simulation cannot run is named here, with the reason, and is left out of the shares; nothing else is.
"""

from __future__ import annotations

import ast
import json
import pathlib
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
PACKAGES = ("agent", "agent/http", "membership", "replication", "segment_store", "shoal")
"""By folder; `agent/http` is not counted in `agent`."""
SHARES = {"agent": 0.90, "agent/http": 0.60, "segment_store": 0.75}
"""What a hundred seeds must run at least: `scripts/simulate --seeds 100 --coverage` fails below."""
SHARES_FROM_SEEDS = 100

_KERNEL = "asks the kernel: the simulation has no rings, file systems, mapped pages or selectors"
_PROCESS = "is what makes a process of an agent: signals, limits, its own files and ports"
_TOOL = "is a command's, for a stopped log or a person: no running agent calls it"
_OTHER_GOSSIP = "speaks to a Serf agent, to a multicast group or to strangers; conformance tests do that"
EXCLUDED = {
    "agent/cli": _TOOL,
    "agent/__main__.py": _PROCESS,
    "agent/process/signals.py": _PROCESS,
    "agent/durable/data_directory.py": _PROCESS,
    "agent/process/ports.py": _PROCESS,
    "agent/process/footprint.py": _PROCESS,
    "agent/process/event_loop.py": _KERNEL,
    "agent/members/gossip_keys.py": "changes the gossip keys, which simulated pools do not have",
    "agent/durable/keyring_file.py": "keeps the gossip keys, which simulated pools do not have",
    "agent/http/admin/keys.py": "changes the gossip keys, which simulated pools do not have",
    "agent/http/docs/page.py": "is a page for a person",
    "agent/http/docs/openapi.py": "is a document for a person",
    "agent/http/api/schemas.py": "is a document for a person",
    "segment_store/disk/ring.py": _KERNEL,
    "segment_store/disk/inline_sync.py": _KERNEL,
    "segment_store/disk/disk.py": _KERNEL,
    "segment_store/disk/system_calls.py": _KERNEL,
    "segment_store/disk/threads.py": _KERNEL,
    "segment_store/lending/lent_pages.py": _KERNEL,
    "segment_store/lending/mapped_pages.py": _KERNEL,
    "segment_store/check/offline.py": _TOOL,
    "segment_store/check/examination.py": _TOOL,
    "membership/net/mdns.py": _OTHER_GOSSIP,
    "membership/net/guest.py": _OTHER_GOSSIP,
    "membership/serf_agent/hosted.py": _OTHER_GOSSIP,
    "membership/serf_agent/hosted_watch.py": _OTHER_GOSSIP,
    "membership/serf_agent/membership.py": _OTHER_GOSSIP,
    "membership/serf_agent/rpc.py": _OTHER_GOSSIP,
    "membership/serf_agent/commands.py": _OTHER_GOSSIP,
    "membership/serf_agent/rpc_wire.py": _OTHER_GOSSIP,
    "membership/serf/keys.py": "changes the gossip keys, which simulated pools do not have",
    "membership/wire/envelope.py": "seals with the gossip keys, which simulated pools do not have",
}

Ran = dict[str, set[int]]
"""By file under ROOT: the first lines of the functions that ran."""


class Recorder:
    """`start()` to `stop()`: every function that is called, in every thread that begins meanwhile."""

    def __init__(self) -> None:
        self._codes: set[Any] = set()

    def start(self) -> None:
        """As a tracer that wants no lines: it is told of calls alone, a profiler of four things for each."""
        threading.settrace(self._told)
        sys.settrace(self._told)

    def _told(self, frame: Any, _event: str, _: Any) -> None:
        self._codes.add(frame.f_code)

    def stop(self) -> Ran:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # as documented: no function any more
        ran: Ran = defaultdict(set)
        for code in self._codes:
            path = pathlib.Path(code.co_filename).resolve()
            if path.is_relative_to(ROOT):
                ran[str(path.relative_to(ROOT))].add(code.co_firstlineno)
        return ran


def to_text(ran: Ran) -> str:
    return json.dumps({path: sorted(lines) for path, lines in ran.items()})


def from_text(text: str) -> Ran:
    """The inverse of to_text."""
    return {path: set(lines) for path, lines in json.loads(text).items()}


class Function(NamedTuple):
    path: str
    line: int
    name: str


@dataclass
class Row:
    """Of one package. `excluded`: how many functions a simulation cannot run."""

    package: str
    ran: int = 0
    excluded: int = 0
    missed: list[Function] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.ran / (self.ran + len(self.missed))


def table(ran: Ran) -> list[Row]:
    """One row for each of PACKAGES."""
    rows = {package: Row(package) for package in PACKAGES}
    for package, function in _functions():
        row = rows[package]
        if _reason(function.path) is not None:
            row.excluded += 1
        elif function.line in ran.get(function.path, ()):
            row.ran += 1
        else:
            row.missed.append(function)
    return list(rows.values())


def too_small(ran: Ran, seeds: int) -> list[str]:
    """Packages of which so many seeds, if they are enough to judge by, ran less than they must."""
    if seeds < SHARES_FROM_SEEDS:
        return []
    return [row.package for row in table(ran) if row.share < SHARES.get(row.package, 0)]


def print_table(ran: Ran, *, names: bool) -> None:
    """`names`: those of the functions that never ran as well."""
    rows = table(ran)
    print(f"{'functions of':<16}{'run':>6}{'of':>7}{'share':>8}{'bar':>6}   left out: cannot be simulated")
    for row in rows:
        total = row.ran + len(row.missed)
        bar = f"{SHARES[row.package]:.0%}" if row.package in SHARES else ""
        print(f"{row.package:<16}{row.ran:>6}{total:>7}{row.share:>8.1%}{bar:>6}   {row.excluded}")
    if not names:
        return
    for reason in dict.fromkeys(EXCLUDED.values()):
        paths = [path for path, why in EXCLUDED.items() if why == reason]
        print(f"left out, {reason}: {', '.join(paths)}")
    for row in rows:
        by_path: dict[str, list[str]] = defaultdict(list)
        for function in row.missed:
            by_path[function.path].append(function.name)
        for path, missed in by_path.items():
            print(f"never run, {path}: {', '.join(missed)}")


def _reason(path: str) -> str | None:
    """Why a file is left out; None when it counts."""
    return next((why for left, why in EXCLUDED.items() if path == left or path.startswith(f"{left}/")), None)


def _functions() -> Iterator[tuple[str, Function]]:
    for path in sorted(ROOT.glob("*/**/*.py")):
        relative = path.relative_to(ROOT)
        package = "agent/http" if relative.parts[:2] == ("agent", "http") else relative.parts[0]
        if package in PACKAGES and not any(part.is_symlink() for part in path.parents):
            for function in _functions_of(str(relative), path.read_text()):
                yield package, function


def _functions_of(path: str, text: str) -> Iterator[Function]:
    """Those with something to run: what only names an interface has no body."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_empty(node.body):
            line = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            yield Function(path, line, node.name)


def _is_empty(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(item, ast.Pass) or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
        for item in body
    )
