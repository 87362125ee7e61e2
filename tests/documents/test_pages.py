"""The pages for users: each says whom it is for, and links lead to headings.

That sentences stay short is shown for all documents by tests/test_internal_documents.py, that metrics are all
named by tests/operations.
"""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from shoal.agent.log_lines.cluster_news import TEXTS
from shoal.agent.log_lines.schema import KEYS, faults_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
USERS = (
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(DOCS / name for name in ("tutorial.md", "concepts.md", "configuration.md", "glossary.md", "cli.md")),
    *(DOCS / name for name in ("compare.md", "performance.md", "http.md", "clients.md", "spark.md")),
    DOCS / "formats.md",
    DOCS / "security.md",
    DOCS / "asvs.md",
    DOCS / "groups.md",
    DOCS / "timers.md",
    DOCS / "tables.md",
    *sorted((DOCS / "operations").glob("*.md")),
)
NOTES = sorted(path for path in (ROOT / "lab").glob("*.md") if path.name != "README.md")


def anchors(page: pathlib.Path) -> set[str]:
    """The fragments that GitHub makes of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", USERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_opens_with_what_it_is_for_and_for_whom(page: pathlib.Path) -> None:
    """Before any other heading there is a paragraph that says `for`."""
    title, _, rest = page.read_text().partition("\n")
    assert title.startswith("# ")
    opening = rest.partition("\n#")[0].strip()
    assert re.search(r"\b[Ff]or ", opening), opening


@pytest.mark.parametrize("page", [*USERS, *NOTES, ROOT / "lab" / "README.md"], ids=lambda page: page.name)
def test_links_lead_to_pages_and_headings(page: pathlib.Path) -> None:
    """No link of these pages is dead, fragments included."""
    wrong = []
    for target, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path = (page.parent / target) if target else page
        if not path.exists() or (fragment and fragment not in anchors(path)):
            wrong.append(f"{target}#{fragment}")
    assert wrong == []


def test_every_note_says_what_was_asked_and_what_came_of_it() -> None:
    """Its date stands in its name and its title; it is listed in lab/README.md."""
    index = (ROOT / "lab" / "README.md").read_text()
    assert len(NOTES) >= 15
    for note in NOTES:
        text = note.read_text()
        assert re.match(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.md$", note.name), note.name
        assert text.startswith(f"# {note.name[:10]}: "), note.name
        assert "**Question.**" in text, note.name
        assert "**Verdict.**" in text, note.name
        assert f"]({note.name})" in index, note.name


def test_the_page_of_monitoring_has_the_schema_of_the_log() -> None:
    """Each key with its kind and its meaning, and the event of each line that tells of the cluster."""
    page = (DOCS / "operations" / "monitoring.md").read_text()
    kinds = {str: "text", int: "number", list: "list of texts"}
    for name, key in KEYS.items():
        always = "yes" if key.is_always_there else ""
        assert f"| `{name}` | {kinds[key.kind]} | {always} | {key.meaning} |" in page
    assert [event for event in TEXTS if f"`{event}`" not in page] == []
    example = re.search(r"^    (\{.*\})$", page, re.MULTILINE)
    assert example is not None
    assert faults_of(json.loads(example[1])) == []
