"""The rooms of the house: which folder may import which. `python tests/rooms.py` prints the table with sizes.

Law of this file: data, and how a file's room is found. What must hold of it stands in test_rooms.py.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINKED = ("agent", "membership", "replication", "segment_store")
PACKAGES = (*LINKED, "shoal")
FILES_MAX = 16
LINES_MAX = 4_000
# Files that are rooms of their own: doors and values at the top of a package, above or below its folders.
FILE_ROOMS = {
    "agent/config.py": "agent/config",
    "agent/fetch.py": "agent/fetch",
    "agent/interface.py": "agent/interface",
    "agent/levels.py": "agent/levels",
    "agent/receive.py": "agent/receive",
    "agent/settings.py": "agent/settings",
    "agent/submission.py": "agent/submission",
    "agent/table.py": "agent/table",
    "agent/tls_settings.py": "agent/tls_settings",
    "agent/__main__.py": "agent/__main__",
    "membership/config.py": "membership/config",
    "membership/interface.py": "membership/interface",
    "replication/raft.py": "replication/raft",
    "segment_store/__init__.py": "segment_store/__init__",
    "segment_store/config.py": "segment_store/config",
    "segment_store/errors.py": "segment_store/errors",
    "shoal/__init__.py": "shoal/__init__",
    "shoal/addresses.py": "shoal/addresses",
    "shoal/connector.py": "shoal/connector",
    "shoal/credentials.py": "shoal/credentials",
    "shoal/errors.py": "shoal/errors",
    "shoal/lookup.py": "shoal/lookup",
    "shoal/name_resolver.py": "shoal/name_resolver",
    "shoal/spark/boundary.py": "shoal/spark/boundary",
    "shoal/spark/pyspark_api.py": "shoal/spark/pyspark_api",
    "shoal/spark/pyspark_version.py": "shoal/spark/pyspark_version",
    "shoal/tls.py": "shoal/tls",
    "shoal/unpicklable.py": "shoal/unpicklable",
}
# What any room may import: it knows nobody.
COMMON = frozenset(
    (
        "agent/levels",
        "agent/log_lines",
        "agent/metrics",
        "agent/security",
        "shoal/errors",
        "shoal/format",
        "shoal/addresses",
        "shoal/connector",
        "shoal/credentials",
        "shoal/lookup",
        "shoal/name_resolver",
        "shoal/tls",
        "shoal/unpicklable",
    )
)
# What each room may import beside that. Rooms stand in the order of their floors: none imports one above it.
ROOMS = {
    "agent/__main__": "agent/cli",
    "agent/cli": """agent agent/cli/bench agent/cli/examine agent/cli/records agent/cli/secure
        agent/cli/terminal agent/cli/top
        agent/config agent/process agent/settings membership/wire segment_store/disk segment_store/errors
        shoal/__init__ shoal/client shoal/client/http shoal/spark shoal/spark/options
        shoal/spark/pipelines""",
    "agent/cli/examine": """agent/cli/records agent/cli/secure agent/cli/terminal agent/durable
        agent/partition agent/process agent/settings agent/topics
        segment_store/check segment_store/disk segment_store/errors segment_store/format shoal/spark
        shoal/spark/options shoal/spark/pyspark_version""",
    "agent/cli/records": """agent/cli/terminal segment_store/check shoal/client shoal/client/consume
        shoal/client/produce shoal/client/subscribe shoal/client/tables""",
    "agent/cli/secure": """agent/cli/terminal agent/config agent/process agent/settings agent/tls
        membership/wire""",
    "agent/cli/bench": "agent/cli/terminal shoal/client shoal/client/http shoal/client/produce",
    "agent/cli/top": "agent/cli/terminal shoal/client shoal/client/http",
    "agent/cli/terminal": "shoal/client shoal/client/http",
    "agent": """agent/audit agent/bootstrap agent/config agent/delivery agent/durable agent/events agent/host
        agent/http agent/http/admission agent/issuer agent/members agent/partition agent/peers agent/placement
        agent/process agent/routing agent/service agent/settings agent/tls agent/topics
        membership/interface membership/serf membership/wire replication segment_store/disk
        segment_store/errors shoal/__init__""",
    "agent/service": """agent/config agent/delivery agent/durable agent/events agent/fetch agent/groups
        agent/host agent/interface agent/members agent/partition agent/peers agent/placement agent/process
        agent/receive agent/routing agent/submission agent/table agent/topics membership/interface
        replication/placement segment_store/check shoal/client/http""",
    "agent/audit": "agent/durable agent/peers agent/process agent/submission agent/topics",
    "agent/placement": """agent/bootstrap agent/durable agent/host agent/members agent/partition agent/peers
        agent/process agent/routing agent/topics replication replication/placement replication/roles
        segment_store/disk segment_store/errors""",
    "agent/bootstrap": "agent/config agent/durable agent/members agent/process agent/topics",
    "agent/topics": """agent/config agent/durable agent/events agent/groups agent/host agent/interface
        agent/members agent/partition agent/partition/state agent/peers agent/process agent/receive
        agent/submission replication replication/placement segment_store/config segment_store/disk
        segment_store/errors segment_store/log""",
    "agent/members": """agent/config agent/durable agent/events agent/peers agent/process
        membership/config membership/interface membership/net membership/serf membership/serf_agent
        membership/wire replication/placement shoal/client/http""",
    "agent/host": """agent/delivery agent/durable agent/fetch agent/groups agent/partition
        agent/partition/state agent/peers agent/process agent/submission agent/views agent/views/upkeep
        replication replication/roles replication/state segment_store/check segment_store/disk
        segment_store/errors segment_store/format segment_store/log""",
    "agent/routing": "agent/durable agent/events agent/partition agent/peers agent/process replication/roles",
    "agent/delivery": """agent/durable agent/groups agent/groups/leader agent/partition agent/receive
        agent/submission agent/table agent/views agent/views/upkeep segment_store/errors
        segment_store/format""",
    "agent/views/upkeep": """agent/durable agent/partition agent/peers agent/receive agent/table agent/views
        segment_store/errors segment_store/log""",
    "agent/views": "agent/partition agent/receive agent/table segment_store/disk segment_store/errors",
    "agent/partition": """agent/durable agent/fetch agent/groups agent/partition/state agent/peers
        agent/process agent/submission agent/table replication replication/raft replication/roles
        replication/state
        segment_store/check segment_store/config segment_store/disk segment_store/errors
        segment_store/log""",
    "agent/partition/state": "replication",
    "agent/groups/leader": "agent/groups agent/receive",
    "agent/groups": "agent/receive",
    "agent/peers": "agent/durable agent/process replication",
    "agent/durable": """agent/config agent/process membership/serf membership/wire replication
        segment_store/disk segment_store/errors""",
    # A front door: of the agent it knows agent/interface.py, and nothing else.
    "agent/http": """agent/http/admin agent/http/admission agent/http/api agent/http/core agent/http/docs
        agent/http/fetch agent/http/groups agent/http/http1 agent/http/produce agent/http/tables
        agent/interface""",
    "agent/http/docs": "agent/http/api agent/http/core",
    "agent/http/tables": """agent/http/admission agent/http/api agent/http/core agent/http/fetch
        agent/http/produce agent/http/rows agent/interface""",
    "agent/http/produce": """agent/http/admin agent/http/admission agent/http/api agent/http/core
        agent/http/http1 agent/interface""",
    "agent/http/groups": """agent/http/admin agent/http/admission agent/http/api agent/http/core
        agent/http/fetch agent/http/rows agent/interface""",
    "agent/http/fetch": "agent/http/admission agent/http/api agent/http/core agent/http/rows agent/interface",
    "agent/http/admin": """agent/http/admission agent/events agent/http/api agent/http/core agent/interface
        membership/interface""",
    "agent/http/core": "agent/http/admission agent/http/api agent/http/rows agent/interface",
    "agent/http/rows": "agent/http/admission agent/interface",
    "agent/http/api": "agent/interface membership/interface",
    "agent/http/http1": "agent/http/admission",
    "agent/http/admission": "",
    "agent/interface": """agent/events agent/fetch agent/receive agent/submission agent/table
        membership/interface""",
    "agent/fetch": "",
    "agent/submission": "",
    "agent/receive": "",
    "agent/table": "",
    "agent/levels": "",
    "agent/security": "",
    "agent/tls": "agent/process agent/tls_settings",
    "agent/issuer": "agent/process",
    "agent/events": "agent/process",
    "agent/process": "agent/config agent/settings segment_store/errors",
    "agent/log_lines": "",
    "agent/metrics": "",
    "agent/config": "agent/settings agent/tls_settings",
    "agent/tls_settings": "agent/settings",
    "agent/settings": "",
    "shoal/__init__": """shoal/client shoal/client/consume shoal/client/http shoal/client/produce
        shoal/client/subscribe shoal/client/tables""",
    "shoal/spark": """shoal/spark/boundary shoal/spark/options shoal/spark/pyspark_api
        shoal/spark/pyspark_version shoal/spark/read shoal/spark/ship shoal/spark/write""",
    "shoal/spark/pipelines": "shoal/spark/options",
    "shoal/spark/write": """shoal/client/http shoal/spark/boundary shoal/spark/options
        shoal/spark/pyspark_api shoal/spark/read shoal/spark/ship""",
    "shoal/spark/read": """shoal/client/http shoal/spark/boundary shoal/spark/options
        shoal/spark/pyspark_api shoal/spark/ship""",
    "shoal/spark/ship": "",
    "shoal/spark/boundary": "shoal/spark/options",
    "shoal/spark/options": "",
    "shoal/spark/pyspark_api": "",
    "shoal/spark/pyspark_version": "",
    "shoal/client": """shoal/client/consume shoal/client/http shoal/client/produce shoal/client/subscribe
        shoal/client/tables""",
    "shoal/client/produce": "shoal/client/http",
    "shoal/client/subscribe": "shoal/client/consume shoal/client/http",
    "shoal/client/tables": "shoal/client/consume shoal/client/http",
    "shoal/client/consume": "shoal/client/http",
    "shoal/client/http": "membership/net membership/wire",
    "membership": "",
    "membership/net": """membership/config membership/interface membership/serf membership/serf_agent
        membership/swim membership/wire""",
    "membership/serf_agent": "membership/interface membership/serf membership/wire",
    "membership/interface": "membership/serf membership/wire",
    "membership/serf": "membership/config membership/swim membership/wire",
    "membership/swim": "membership/config membership/wire",
    "membership/config": "membership/wire",
    "membership/wire": "",
    "segment_store/__init__": """segment_store/config segment_store/disk segment_store/errors
        segment_store/log""",
    "segment_store/check": "segment_store/disk segment_store/errors segment_store/format segment_store/log",
    "segment_store/log": """segment_store/config segment_store/disk segment_store/errors segment_store/format
        segment_store/lending""",
    "segment_store/lending": "segment_store/disk",
    "segment_store/disk": "segment_store/errors",
    "segment_store/format": "segment_store/errors",
    "segment_store/config": "",
    "segment_store/errors": "",
    "replication/placement": "replication",
    "replication/raft": "replication replication/roles replication/state",
    "replication/roles": "replication replication/state",
    "replication/state": "replication",
    "replication": "",
    "shoal/format": "",
    "shoal/unpicklable": "",
    "shoal/addresses": "",
    "shoal/credentials": "",
    "shoal/tls": "",
    "shoal/connector": "",
    "shoal/lookup": "",
    "shoal/name_resolver": "",
    "shoal/errors": "",
}


class Import(NamedTuple):
    """One import: where it stands, and the file that it names."""

    path: str
    line: int
    imported: str


def product_files() -> list[str]:
    """All product files by their paths in the repository; none twice through the links."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if not (relative.parts[0] == "shoal" and relative.parts[1] in LINKED):
                found.append(str(relative))
    return found


def room_of(path: str) -> str:
    """The room that a product file stands in."""
    return FILE_ROOMS.get(path) or path.rpartition("/")[0]


def module_of(path: str) -> str:
    """By which name a product file is imported."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.split(".")[0] == "shoal" else f"shoal.{name}"


@functools.cache
def imports() -> tuple[Import, ...]:
    """Every import of a product file by another one, those for type checkers and inside functions too."""
    files = product_files()
    paths = {module_of(path): path for path in files}
    return tuple(
        Import(path, line, paths[module])
        for path in files
        for line, module in _imported(path, paths)
        if paths[module] != path
    )


def _imported(path: str, paths: dict[str, str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in paths else f"{node.module}" for name in whole]
        else:
            continue
        yield from ((node.lineno, name) for name in dict.fromkeys(names) if name in paths)


def main() -> None:
    """Print each room with its files, lines, and the rooms that import it."""
    files, lines = Counter[str](), Counter[str]()
    for path in product_files():
        room = room_of(path)
        files[room] += 1
        lines[room] += (ROOT / path).read_text().count("\n")
    doors = {
        room: {room_of(item.path) for item in imports() if room_of(item.imported) == room} for room in ROOMS
    }
    print(f"{'room':<26}{'files':>6}{'lines':>7}  imported by")
    for room in ROOMS:
        others = sorted(doors[room] - {room})
        shown = "any" if room in COMMON else " ".join(others)
        print(f"{room:<26}{files[room]:>6}{lines[room]:>7}  {shown}".rstrip())
    print(f"{len(ROOMS)} rooms, {files.total()} files, {lines.total()} lines")


if __name__ == "__main__":
    main()
