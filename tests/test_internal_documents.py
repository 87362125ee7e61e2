"""The documents for engineers hold: what code cites exists, the map names every room, sentences stay short.

Law of this file: it compares documents with the code and with each other. That examples in documents run is
shown by tests/cluster/test_documents.py, that links lead somewhere by test_structure.py.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Iterator

import pytest
import test_structure
from rooms import FILE_ROOMS, ROOMS, ROOT

from tests.safety.rules import FAULTS, NOT_BUILT

INTERNALS = ROOT / "docs" / "internals"
NUMBERS = r"(\d+(?:(?:, and |, | and | to )\d+)*)\b"
CITED_RULE = re.compile(rf"\bsafety {NUMBERS}", re.IGNORECASE)
CITED_DECISION = re.compile(rf"\bdecisions? {NUMBERS}", re.IGNORECASE)
# Pages that stood in a design, and never in this repository.
ABSENT_PAGES = re.compile(r"http-api|batch-format|the HTTP page|the safety page|architecture, decision")
ARCHITECTURE_LINES_MAX = 170
ARCHITECTURE_WIDTH_MAX = 110
SENTENCE_WORDS_MAX = 45


def unwrapped(text: str) -> str:
    """Line ends and comment marks are no part of what is cited."""
    return re.sub(r"\s*\n\s*(?:#:? )?", " ", text)


@functools.cache
def texts() -> dict[str, str]:
    """Every source and document but this file, by its path."""
    paths = [*test_structure.sources(), *test_structure.other_sources(), *test_structure.documents()]
    mine = pathlib.Path(__file__)
    return {str(path.relative_to(ROOT)): unwrapped(path.read_text()) for path in paths if path != mine}


def numbers_of(cited: str) -> Iterator[int]:
    """Of `2, 3 and 7 to 11`: every number, those between two included."""
    for part in re.split(r", and |, | and ", cited):
        first, _, last = part.partition(" to ")
        yield from range(int(first), int(last or first) + 1)


def citations(pattern: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """Which file cites which number."""
    for path, text in texts().items():
        for found in pattern.finditer(text):
            yield from ((path, number) for number in numbers_of(found[1]))


@functools.cache
def rules() -> dict[int, str]:
    """The text of each rule in docs/internals/safety.md."""
    parts = re.split(r"^### Safety (\d+): .*$", (INTERNALS / "safety.md").read_text(), flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def decisions() -> dict[int, str]:
    """Number -> file name of every decision; its heading has the same number."""
    found = {}
    for path in sorted((INTERNALS / "decisions").glob("*.md")):
        number = int(path.name[:4])
        assert path.read_text().startswith(f"# Decision {number}: "), path.name
        found[number] = path.name
    return found


@pytest.mark.parametrize(
    ("cited", "numbers"),
    [("2", [2]), ("2, 3", [2, 3]), ("7 to 11", [7, 8, 9, 10, 11]), ("1, 4 and 7 to 8", [1, 4, 7, 8])],
)
def test_numbers_of(cited: str, numbers: list[int]) -> None:
    """Lists and ranges, as comments spell them."""
    assert list(numbers_of(cited)) == numbers
    assert CITED_RULE.findall(f"so it is (safety {cited}).") == [cited]


def test_every_cited_safety_rule_exists() -> None:
    """A comment that cites a rule is a promise that the reader can look it up."""
    cited = list(citations(CITED_RULE))
    assert len(cited) > 150
    assert [place for place in cited if place[1] not in rules()] == []
    assert list(rules()) == list(range(1, len(rules()) + 1))


def test_every_cited_decision_exists() -> None:
    """The same for decisions; numbers are without gaps, and the index of docs/internals has them all."""
    known = decisions()
    assert [place for place in citations(CITED_DECISION) if place[1] not in known] == []
    assert list(known) == list(range(1, len(known) + 1))
    index = (INTERNALS / "README.md").read_text()
    assert [name for name in known.values() if f"(decisions/{name})" not in index] == []


def test_absent_pages_are_cited_nowhere() -> None:
    """What is cited by name stands in this repository."""
    assert [(path, found[0]) for path, text in texts().items() for found in ABSENT_PAGES.finditer(text)] == []


def test_pages_that_code_cites_exist() -> None:
    """By their paths from the top."""
    cited = {
        (path, found)
        for path, text in texts().items()
        if path.endswith(".py")
        for found in re.findall(r"\bdocs/[\w/-]+\.md\b", text)
    }
    assert len(cited) > 10
    assert sorted((path, page) for path, page in cited if not (ROOT / page).exists()) == []


def test_every_rule_names_tests_that_show_it() -> None:
    """Those that a rule names are tests that a fault against the same rule must fail."""
    shown: dict[int, set[str]] = {number: set() for number in rules()}
    for fault in FAULTS:
        shown[fault.rule].update(fault.tests)
    for number, text in rules().items():
        named = set(re.findall(r"`(tests/\S+?\.py(?:::\w+)?)`", text))
        assert named <= shown[number], f"safety {number}"
        assert bool(named) == (number not in NOT_BUILT), f"safety {number}"


def test_files_named_in_the_internals_exist() -> None:
    """As in ARCHITECTURE.md: no page names a file that is not there."""
    pattern = r"`((?:agent|membership|replication|segment_store|shoal|scripts|tests)/[\w/.]+)`"
    wrong = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in sorted(INTERNALS.rglob("*.md"))
        for name in re.findall(pattern, page.read_text())
        if not (ROOT / name).exists()
    ]
    assert wrong == []


def architecture() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text()


def test_the_architecture_names_every_room() -> None:
    """By its path, or below another one: `docs/`. Small value files at the top of a package go without."""
    text = architecture()
    folders = [room for room in ROOMS if room not in FILE_ROOMS.values()]
    assert [
        room for room in folders if f"`{room}/`" not in text and f"`{room.rpartition('/')[2]}/`" not in text
    ] == []


def test_rooms_that_the_architecture_calls_pure_are_pure() -> None:
    """P in the table: no clock, no chance but a random.Random, no input or output, nothing awaited."""
    rows = re.findall(r"^\| (`.*`) P \|", architecture(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\S+?)`", row)]
    assert len(named) >= 8
    wrong = []
    for name in named:
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(place.glob("*.py")):
            relative = path.relative_to(ROOT)
            wrong += [f"{relative}:{line} awaits" for line in test_structure.outline(path).awaits]
            wrong += [
                f"{relative}:{line} imports {module}"
                for line, module in test_structure.imported_modules(path)
                if module.split(".")[0] in test_structure.IMPURE_MODULES
            ]
            wrong += [
                f"{relative} uses random.{use}"
                for use in re.findall(r"\brandom\.([a-z]\w*)", test_structure.outline(path).text)
            ]
    assert wrong == []


def test_the_architecture_stays_two_pages() -> None:
    """A map is read at a glance; what needs more stands in docs/internals."""
    lines = architecture().splitlines()
    assert len(lines) <= ARCHITECTURE_LINES_MAX
    assert [line for line in lines if len(line) > ARCHITECTURE_WIDTH_MAX] == []


def sentences(text: str) -> Iterator[str]:
    """Of a document without code: cells of tables, items of lists and paragraphs, each by its sentences."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?:(?<=\n\n)|(?<=-->\n))(?:    .*\n)+", "", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=[#|])|\|", text):
        yield from re.split(r"(?<=[.!?])\s+", " ".join(block.split()))


def test_sentences_stay_short() -> None:
    """A sentence of more than 45 words is read twice."""
    pages = test_structure.documents()
    long = [
        f"{page.relative_to(ROOT)}: {sentence}"
        for page in pages
        for sentence in sentences(page.read_text())
        if len(sentence.split()) > SENTENCE_WORDS_MAX
    ]
    assert long == []


def anchors(page: pathlib.Path) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_anchors_in_documents_lead_to_a_heading() -> None:
    """A link to a part of a page does not end at the page's top."""
    wrong, seen = [], 0
    for page in test_structure.documents():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                seen += 1
                if anchor not in anchors(page.parent / target if target else page):
                    wrong.append(f"{page.relative_to(ROOT)} -> {target}#{anchor}")
    assert seen > 20
    assert wrong == []
