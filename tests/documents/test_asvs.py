"""docs/asvs.md: each requirement of levels 1 and 2 of OWASP ASVS 5.0.0 once, and its tests are there."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from typing import Final

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "asvs.md"
AGENT = ("agent", "membership", "replication", "segment_store")
"""Packages that an agent runs. Spark's workers unpickle what their own driver sent."""
STATES: Final = ("met", "not applicable", "not met")
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
LINK = re.compile(r"\[page\]\(([\w/]+\.md)(?:#[\w-]+)?\)")
LEVEL_1: Final = """
    1.2.1 1.2.2 1.2.3 1.2.4 1.2.5 1.3.1 1.3.2 1.5.1 2.1.1 2.2.1 2.2.2 2.3.1 3.2.1 3.2.2 3.3.1 3.4.1
    3.4.2 3.5.1 3.5.2 3.5.3 4.1.1 4.4.1 5.2.1 5.2.2 5.3.1 5.3.2 6.1.1 6.2.1 6.2.2 6.2.3 6.2.4 6.2.5
    6.2.6 6.2.7 6.2.8 6.3.1 6.3.2 6.4.1 6.4.2 7.2.1 7.2.2 7.2.3 7.2.4 7.4.1 7.4.2 8.1.1 8.2.1 8.2.2
    8.3.1 9.1.1 9.1.2 9.1.3 9.2.1 10.4.1 10.4.2 10.4.3 10.4.4 10.4.5 11.3.1 11.3.2 11.4.1 12.1.1
    12.2.1 12.2.2 13.4.1 14.2.1 14.3.1 15.1.1 15.2.1 15.3.1
"""
LEVEL_2: Final = """
    1.1.1 1.1.2 1.2.6 1.2.7 1.2.8 1.2.9 1.3.3 1.3.4 1.3.5 1.3.6 1.3.7 1.3.8 1.3.9 1.3.10 1.3.11
    1.4.1 1.4.2 1.4.3 1.5.2 2.1.2 2.1.3 2.2.3 2.3.2 2.3.3 2.3.4 2.4.1 3.3.2 3.3.3 3.3.4 3.4.3 3.4.4
    3.4.5 3.4.6 3.5.4 3.5.5 3.7.1 3.7.2 4.1.2 4.1.3 4.2.1 4.3.1 4.3.2 4.4.2 4.4.3 4.4.4 5.1.1 5.2.3
    5.4.1 5.4.2 5.4.3 6.1.2 6.1.3 6.2.9 6.2.10 6.2.11 6.2.12 6.3.3 6.3.4 6.4.3 6.4.4 6.5.1 6.5.2
    6.5.3 6.5.4 6.5.5 6.6.1 6.6.2 6.6.3 6.8.1 6.8.2 6.8.3 6.8.4 7.1.1 7.1.2 7.1.3 7.3.1 7.3.2 7.4.3
    7.4.4 7.4.5 7.5.1 7.5.2 7.6.1 7.6.2 8.1.2 8.2.3 8.4.1 9.2.2 9.2.3 9.2.4 10.1.1 10.1.2 10.2.1
    10.2.2 10.3.1 10.3.2 10.3.3 10.3.4 10.4.6 10.4.7 10.4.8 10.4.9 10.4.10 10.4.11 10.5.1 10.5.2
    10.5.3 10.5.4 10.5.5 10.6.1 10.6.2 10.7.1 10.7.2 10.7.3 11.1.1 11.1.2 11.2.1 11.2.2 11.2.3
    11.3.3 11.4.2 11.4.3 11.4.4 11.5.1 11.6.1 12.1.2 12.1.3 12.3.1 12.3.2 12.3.3 12.3.4 13.1.1
    13.2.1 13.2.2 13.2.3 13.2.4 13.2.5 13.3.1 13.3.2 13.4.2 13.4.3 13.4.4 13.4.5 14.1.1 14.1.2
    14.2.2 14.2.3 14.2.4 14.3.2 14.3.3 15.1.2 15.1.3 15.2.2 15.2.3 15.3.2 15.3.3 15.3.4 15.3.5
    15.3.6 15.3.7 16.1.1 16.2.1 16.2.2 16.2.3 16.2.4 16.2.5 16.3.1 16.3.2 16.3.3 16.3.4 16.4.1
    16.4.2 16.4.3 16.5.1 16.5.2 16.5.3 17.1.1 17.2.1 17.2.2 17.2.3 17.2.4 17.3.1 17.3.2
"""


def rows() -> list[list[str]]:
    """The cells of each requirement."""
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d+\.\d+\.\d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@functools.cache
def calls() -> tuple[tuple[pathlib.Path, ast.Call], ...]:
    """In every file that an agent runs."""
    return tuple(
        (path, node)
        for package in AGENT
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    )


@functools.cache
def called(node: ast.AST) -> str:
    """The name of a call as it is written, such as `os.urandom`."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def test_each_requirement_stands_once_with_its_level() -> None:
    """In the order of the standard: 70 of level 1, 183 of level 2."""
    found = {cells[0]: cells[1] for cells in rows()}
    assert len(rows()) == len(found) == len(f"{LEVEL_1}{LEVEL_2}".split()) == 253
    assert sorted(number for number, level in found.items() if level == "1") == sorted(LEVEL_1.split())
    assert sorted(number for number, level in found.items() if level == "2") == sorted(LEVEL_2.split())
    order = [tuple(map(int, number.split("."))) for number in found]
    assert order == sorted(order)


def test_no_cell_is_empty_and_each_state_is_one() -> None:
    """Each says what is asked, how it stands and why; a state is no other word."""
    for cells in rows():
        assert len(cells) == 6, cells
        assert all(cells), cells
        assert cells[3] in STATES, cells


def test_what_is_met_names_tests_that_are_there() -> None:
    """Or the page, where documents are asked for. Nothing else claims a test."""
    for cells in rows():
        proofs, pages = PROOF.findall(cells[5]), LINK.findall(cells[5])
        assert bool(proofs or pages) == (cells[3] == "met"), cells
        assert not pages or not proofs, cells
        for path, name in proofs:
            assert re.search(rf"^ *(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), cells
        for page in pages:
            assert (ROOT / "docs" / page).exists(), cells
        if pages:
            assert "document" in cells[2] or re.search(r"inventory|policy|classified", cells[2]), cells


def test_the_counts_are_those_of_the_rows() -> None:
    """At the head of the page."""
    states = [cells[3] for cells in rows()]
    told = dict(re.findall(r"^\| (met|not applicable|not met) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE))
    assert told == {state: str(states.count(state)) for state in STATES}


def test_the_code_evaluates_no_text_and_unpickles_nothing() -> None:
    """Nor does it start a command by a shell."""
    banned = {"eval", "exec", "os.system", "os.popen"}
    loads = re.compile(r"(?:pickle|marshal|shelve|dill|cloudpickle)\.\w+|yaml\.\w*load")
    seen = 0
    for path, node in calls():
        name = called(node)
        seen += bool(name)
        assert name not in banned, f"{path}: {name}"
        assert loads.fullmatch(name) is None, f"{path}: {name}"
        shells = [word for word in node.keywords if word.arg == "shell"]
        assert not shells, f"{path}: {name} by a shell"
    assert seen > 10_000


def test_secrets_are_drawn_by_the_systems_generator() -> None:
    """Each token, gossip key and key of sessions that the code makes; the generator is never seeded."""
    made = sealing = 0
    for path, node in calls():
        sources = [called(given) for given in node.args]
        if called(node) == "make_token":
            assert sources == ["os.urandom", "os.urandom"], f"{path}: {ast.unparse(node)}"
        made += called(node) == "make_token" or (called(node) == "key_text" and sources == ["os.urandom"])
        sealing += called(node) == "MakeSessionKey" and "os.urandom" in sources
    assert made >= 4, "two ways to a token, two to a gossip key"
    assert sealing == 1, "others read one that was made"
