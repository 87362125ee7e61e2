"""The rules that we care about, as tests: who may import whom, what is pure, how large things grow.

A rule that only stands in a document is forgotten; each of these fails with the place that breaks it.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("agent", "membership", "replication", "segment_store", "shoal")
LINKED = PACKAGES[:4]
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
# What each package may import of ours, beside itself. The batch format is a leaf that all may use.
ALLOWED_IMPORTS = {
    "membership": set(),
    "replication": {"shoal.format.batch"},
    "segment_store": {"shoal.format.batch"},
    "shoal": {"shoal"},
    "agent": {"shoal"},
}
# Third-party packages with an owner: only these files may import them.
OWNERS = {
    "liburing": {"segment_store/disk/ring.py"},
    "pyspark": {
        "shoal/spark/listener.py",
        "shoal/spark/source.py",
        "shoal/spark/pyspark_api.py",
        "shoal/spark/read/readers.py",
        "shoal/spark/write/writers.py",
    },
    "zeroconf": {"membership/net/mdns.py"},
    "cryptography": {"membership/wire/sealing.py", "agent/tls/", "agent/security/jwt_keys.py"},
    "jwt": {"agent/security/jwt.py"},
    "typer": {"agent/cli/"},
    "rich": {"agent/cli/"},
    "aiohttp": {
        "agent/http/",
        "agent/issuer/key_source.py",
        "agent/peers/links.py",
        "agent/service/broker.py",
        "agent/bootstrap/introduction.py",
        "agent/members/duplicate_identity.py",
        "shoal/connector.py",
        "shoal/name_resolver.py",
        "shoal/client/http/failures.py",
        "shoal/client/http/requests.py",
        "agent/interface.py",
    },
}
# Files that decide: no clock, no chance, no input or output (ARCHITECTURE.md: "calling convention").
PURE = (
    "replication/*.py",
    "agent/security/jwt.py",
    "agent/security/jwt_keys.py",
    "membership/swim/core.py",
    "membership/swim/suspicion.py",
    "membership/swim/prober.py",
    "membership/swim/broadcasts.py",
    "membership/swim/claims.py",
    "membership/serf/core.py",
    "membership/config.py",
    "membership/swim/stranger_probe.py",
    "membership/wire/envelope.py",
    "membership/swim/former_life.py",
    "membership/serf/keys.py",
    "membership/net/rejected_senders.py",
    "membership/serf/queries.py",
    "membership/wire/*.py",
    "segment_store/format/layout.py",
    "segment_store/format/index.py",
    "segment_store/format/tail_record.py",
    "segment_store/check/examination.py",
    "segment_store/disk/fair_queue.py",
    "segment_store/disk/inline_sync.py",
    "segment_store/check/damage.py",
    "segment_store/format/recovery.py",
    "segment_store/format/segment_scan.py",
    "segment_store/format/bit_flip.py",
    "segment_store/format/torn_write.py",
    "agent/bootstrap/rules.py",
    "agent/cli/bench/figures.py",
    "agent/cli/bench/plan.py",
    "agent/cli/top/json_document.py",
    "agent/cli/top/tables.py",
    "agent/cli/top/rows.py",
    "agent/cli/top/samples.py",
    "agent/cli/top/view.py",
    "agent/topics/catalog.py",
    "agent/topics/catalog_codec.py",
    "agent/topics/entries.py",
    "agent/topics/catalog_pull.py",
    "agent/durable/catalog_version.py",
    "agent/topics/kept.py",
    "agent/config.py",
    "agent/settings.py",
    "agent/tls_settings.py",
    "agent/tls/names.py",
    "agent/log_lines/cluster_news.py",
    "agent/log_lines/names.py",
    "agent/metrics/*.py",
    "agent/service/documents.py",
    "agent/groups/*.py",
    "agent/groups/leader/*.py",
    "agent/http/fetch/merge.py",
    "agent/http/api/patterns.py",
    "shoal/client/subscribe/ledger.py",
    "agent/http/http1/*.py",
    "agent/http/admission/places.py",
    "agent/partition/state/log_time.py",
    "agent/http/rows/row_pieces.py",
    "agent/partition/state/log_state.py",
    "agent/partition/state/idempotence.py",
    "agent/partition/state/retention.py",
    "agent/routing/table.py",
    "agent/peers/entry_messages.py",
    "agent/partition/state/copy_leases.py",
    "agent/topics/settings.py",
    "shoal/addresses.py",
    "shoal/format/arrow_metadata.py",
    "shoal/format/arrow_stream.py",
    "shoal/format/batch.py",
    "shoal/client/produce/batcher.py",
    "shoal/client/http/routes.py",
    "shoal/client/consume/record.py",
    "shoal/errors.py",
    "shoal/format/hash_ranges.py",
    "shoal/format/receipt.py",
    "shoal/format/records.py",
    "shoal/format/partitioner.py",
    "shoal/format/producer_table.py",
    "shoal/format/row_encoding.py",
    "shoal/spark/options/*.py",
    "shoal/spark/read/plan.py",
    "shoal/spark/read/small.py",
    "shoal/format/tabular.py",
    "shoal/format/xxh3.py",
)
IMPURE_MODULES = {
    "aiohttp", "asyncio", "fcntl", "http", "io", "logging", "multiprocessing", "os", "pathlib", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time",
    "urllib", "uuid", "zeroconf", "liburing",
}  # fmt: skip
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|pytest\.mark\.(skip|xfail)|pytest\.skip")


def sources(*packages: str) -> Iterator[pathlib.Path]:
    for package in packages or PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if relative.parts[0] == "shoal" and len(relative.parts) > 1 and relative.parts[1] in LINKED:
                continue  # the same file through its link
            yield path


def other_sources() -> list[pathlib.Path]:
    return sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "scripts").glob("*.py"))


class Function(NamedTuple):
    """`lines`: from its first to its last, both counted."""

    name: str
    line: int
    lines: int
    has_docstring: bool


class Outline(NamedTuple):
    """What the rules ask of a file. `imports`: every module, wherever in the file; `from a.b import c` gives
    a.b and a.b.c. Places are line numbers."""

    text: str
    has_docstring: bool
    imports: list[tuple[int, str]]
    relative_imports: list[int]
    functions: list[Function]
    awaits: list[int]
    swallows: list[int]


@functools.cache
def outline(path: pathlib.Path) -> Outline:
    """Every file is parsed once, however many rules ask; its tree is too large to keep."""
    text = path.read_text()
    tree = ast.parse(text)
    found = Outline(text, bool(ast.get_docstring(tree)), [], [], [], [], [])
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                found.imports.extend((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                if node.level:
                    found.relative_imports.append(node.lineno)
                found.imports.append((node.lineno, node.module or ""))
                found.imports.extend((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                documented = bool(ast.get_docstring(node))
                found.functions.append(Function(node.name, node.lineno, lines, documented))
            case ast.ExceptHandler() if _catches_everything(node) and _does_nothing(node):
                found.swallows.append(node.lineno)
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.awaits.append(node.lineno)
    return found


def imported_modules(path: pathlib.Path) -> list[tuple[int, str]]:
    """Every module that a file imports, and the line."""
    found = outline(path)
    assert not found.relative_imports or path.name == "__init__.py", (
        f"{path}: relative imports hide who knows whom"
    )
    return found.imports


def owner_of(module: str) -> str | None:
    """Which of our packages a module belongs to, None for everybody else's."""
    if module != "shoal" and not module.startswith("shoal."):
        return None
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LINKED else "shoal"


def test_arrows_point_down() -> None:
    """membership, replication and segment_store know none of each other; shoal never knows the agent."""
    wrong = []
    for path in sources():
        package = path.relative_to(ROOT).parts[0]
        for line, module in imported_modules(path):
            owner = owner_of(module)
            if owner in (None, package) or package == "agent":
                continue
            allowed = ALLOWED_IMPORTS[package]
            if (
                not any(module == name or module.startswith(f"{name}.") for name in allowed)
                and module != "shoal"
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert wrong == []


def test_packages_are_imported_by_their_full_names() -> None:
    """`from agent import ...` would break beside a user's own agent.py."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in [*sources(), *other_sources()]
        for line, module in imported_modules(path)
        if module.split(".")[0] in LINKED
    ]
    assert wrong == []


@pytest.mark.parametrize("package", LINKED)
def test_linked_packages_refuse_their_bare_name(package: str) -> None:
    """The guard at the top of each linked package is there, and the link leads to the folder."""
    assert f'__name__ != "shoal.{package}"' in (ROOT / package / "__init__.py").read_text()
    link = ROOT / "shoal" / package
    assert link.is_symlink()
    assert link.resolve() == ROOT / package


def test_third_party_packages_have_owners() -> None:
    """A library that has an owner is imported there and nowhere else in the product."""
    wrong = []
    for path in sources():
        relative = str(path.relative_to(ROOT))
        for line, module in imported_modules(path):
            owners = OWNERS.get(module.split(".")[0])
            if owners is not None and not any(relative == o or relative.startswith(o) for o in owners):
                wrong.append(f"{relative}:{line} imports {module}")
    assert sorted(set(wrong)) == []


def test_every_dependency_is_explained() -> None:
    """Each requirement of setup.cfg has its line in ARCHITECTURE.md: why it and not another."""
    text = (ROOT / "ARCHITECTURE.md").read_text().lower()
    section = (ROOT / "setup.cfg").read_text().split("[options]")[1].split("[options.packages.find]")[0]
    names = re.findall(r"^    ([A-Za-z][A-Za-z0-9_-]+)(?:[<>=;\[]|$)", section, re.MULTILINE)
    assert len(names) >= 10, names
    assert [name for name in names if f"`{name.lower()}`" not in text] == []


def test_pure_files_are_pure() -> None:
    """What decides has no clock, no chance, no socket and no file."""
    wrong, seen = [], 0
    for pattern in PURE:
        paths = sorted(ROOT.glob(pattern))
        assert paths, f"{pattern}: no such file; a pure file was renamed, so rename it here"
        for path in paths:
            seen += 1
            wrong += [f"{path.relative_to(ROOT)}:{line} awaits" for line in outline(path).awaits]
            for line, module in imported_modules(path):
                if module.split(".")[0] in IMPURE_MODULES:
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
                if module == "random" or module.startswith("random."):
                    for use in re.findall(r"random\.(\w+)", outline(path).text):
                        if use != "Random":
                            wrong.append(
                                f"{path.relative_to(ROOT)}: uses random.{use}; chance is an argument"
                            )
    assert seen > 20
    assert sorted(set(wrong)) == []


def test_sizes() -> None:
    """Files stay under 700 lines and functions under 70: the tail is what hurts readers."""
    wrong = []
    for path in [*sources(), *other_sources()]:
        lines = outline(path).text.count("\n")
        if lines > FILE_LINES_MAX:
            wrong.append(f"{path.relative_to(ROOT)} has {lines} lines")
        for function in outline(path).functions:
            if function.lines > FUNCTION_LINES_MAX:
                place = f"{path.relative_to(ROOT)}:{function.line}"
                wrong.append(f"{place} {function.name} has {function.lines} lines")
    assert wrong == []


def test_files_open_with_their_law() -> None:
    """Every file says first what lives in it."""
    wrong = [
        str(path.relative_to(ROOT))
        for path in [*sources(), *other_sources()]
        if not outline(path).has_docstring and outline(path).text.strip()
    ]
    assert wrong == []


def test_every_test_says_what_it_shows() -> None:
    """A test without a sentence is a riddle for whoever breaks it."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in outline(path).functions:
            if function.name.startswith("test_") and not function.has_docstring:
                wrong.append(f"{path.relative_to(ROOT)}:{function.line} {function.name}")
    assert wrong == []


def test_nothing_is_left_for_later() -> None:
    """No marks of unfinished work, no skipped tests, no swallowed exceptions."""
    wrong = []
    for path in [*sources(), *other_sources()]:
        if path == pathlib.Path(__file__):
            continue
        for number, line in enumerate(outline(path).text.splitlines(), 1):
            if LEFTOVERS.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number} {line.strip()}")
        wrong += [
            f"{path.relative_to(ROOT)}:{line} swallows every exception" for line in outline(path).swallows
        ]
    assert wrong == []


def _catches_everything(node: ast.ExceptHandler) -> bool:
    return node.type is None or (
        isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
    )


def _does_nothing(node: ast.ExceptHandler) -> bool:
    return all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)


def documents() -> list[pathlib.Path]:
    folders = (ROOT / "docs", ROOT / "lab")
    below = [path for folder in folders for path in sorted(folder.rglob("*.md"))]
    return [*sorted(ROOT.glob("*.md")), *below]


def test_links_in_documents_lead_somewhere() -> None:
    """Every relative link of every document names a file that exists."""
    wrong = []
    for document in documents():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
            if not target.startswith(("http:", "https:")) and not (document.parent / target).exists():
                wrong.append(f"{document.relative_to(ROOT)} -> {target}")
    assert wrong == []


def test_files_named_in_the_architecture_exist() -> None:
    """The map names no file that is not there."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(
        re.findall(r"`((?:agent|membership|replication|segment_store|shoal|scripts|tests)/[\w/.]+)`", text)
    )
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_no_bare_top_level_modules_are_shipped() -> None:
    """site-packages gets `shoal/` and `pyspark_shoal.py`, and nothing that a user's own names could meet."""
    text = (ROOT / "setup.cfg").read_text()
    assert "py_modules = pyspark_shoal" in text
    assert re.search(r"include =\n    shoal\n    shoal\.\*\n", text)
