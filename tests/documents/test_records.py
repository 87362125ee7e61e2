"""Results as data: what scripts append to lab/, and the table of docs/performance.md that is made of it."""

from __future__ import annotations

import csv
import pathlib
import xml.etree.ElementTree as ElementTree

import campaigns
import performance_page
import plots
import pytest
from row import Row


def result(**changed: str) -> dict[str, str]:
    return {
        "date": "2026-11-22",
        "commit": "e7efebf",
        "rounds": "5",
        "what": "a rate",
        "measured": "3/s",
        "floor": "floor 4/s",
        "ratio": "0.75",
        "goal": "0.6",
        "better": "more",
    } | changed


def write(path: pathlib.Path, *results: dict[str, str]) -> pathlib.Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, performance_page.FIELDS)
        writer.writeheader()
        writer.writerows(results)
    return path


def test_the_page_of_performance_is_made_of_the_results() -> None:
    """If this fails: `python scripts/performance_page.py` writes the table anew."""
    page = performance_page.PAGE.read_text()
    assert page == performance_page.render(page, performance_page.read())
    assert page.count("\n| ") > 30


def test_a_run_of_the_bench_is_appended_and_read_back(tmp_path: pathlib.Path) -> None:
    """Rows with and without a goal; commas and bars survive; a second run adds no second head."""
    path = tmp_path / "results.csv"
    rows = [Row("one, p50", "12 us", "bare 6 us", 2.0, 2.0, True), Row("two", "1/s", "2/s", 0.5, None)]
    performance_page.record(rows, 3, path)
    performance_page.record(rows[:1], 5, path)
    first, second, third = performance_page.read(path)
    assert (first.what, first.measured, first.ratio, first.goal, first.better) == (
        "one, p50",
        "12 us",
        2.0,
        "2",
        "less",
    )
    assert (second.goal, second.is_missed) == ("", False)
    assert (first.rounds, third.rounds) == (3, 5)
    assert not first.is_missed


def test_the_newest_result_of_each_subject_counts(tmp_path: pathlib.Path) -> None:
    """Numbers that differ between runs make no other subject; other words, and other floors, do."""
    results = performance_page.read(
        write(
            tmp_path / "results.csv",
            result(what="fail-over, 34 times", measured="old"),
            result(what="fail-over, 34 times", floor="another 4/s", measured="beside another"),
            result(what="append, 1 at a time", measured="one"),
            result(what="append, 100 at a time", measured="hundred"),
            result(what="fail-over, 100 times", floor="floor 9/s", measured="new"),
        )
    )
    assert [one.measured for one in performance_page.newest(results)] == [
        "new",
        "beside another",
        "one",
        "hundred",
    ]


def test_a_missed_goal_is_said(tmp_path: pathlib.Path) -> None:
    """In either direction."""
    path = write(
        tmp_path / "results.csv",
        result(what="low", ratio="0.5"),
        result(what="late", ratio="2.1", goal="2", better="less"),
        result(what="good"),
    )
    lines = performance_page.table(performance_page.read(path)).splitlines()
    assert [">= 0.60, missed" in lines[2], "<= 2.00, missed" in lines[3], "missed" in lines[4]] == [
        True,
        True,
        False,
    ]


def test_a_goal_that_is_missed_by_little_is_missed_on_the_page_too(tmp_path: pathlib.Path) -> None:
    """The table rounds the ratio, the record does not; a goal of none is kept by none alone."""
    path = tmp_path / "results.csv"
    rows = [
        Row("in time", "98.6 %", "bar: 99 %", 0.986, 0.99),
        Row("early", "0 of 9", "bar: none", 0, 0.0, True),
        Row("again", "1 of 9", "bar: none", 1, 0.0, True),
    ]
    performance_page.record(rows, 3, path)
    lines = performance_page.table(performance_page.read(path)).splitlines()[2:]
    assert ["missed" in line for line in lines] == [True, False, True]
    assert "| 0.99 | >= 0.99, missed |" in lines[0]
    assert "| 0.00 | <= 0.00 |" in lines[1]


@pytest.mark.parametrize(
    "changed", [{"date": "yesterday"}, {"ratio": "high"}, {"better": "bigger"}, {"goal": "none"}]
)
def test_a_row_that_is_no_result_is_named_by_its_line(
    tmp_path: pathlib.Path, changed: dict[str, str]
) -> None:
    """The table is never made of half-understood data."""
    path = write(tmp_path / "results.csv", result(), result(**changed))
    with pytest.raises(performance_page.ResultsError, match="line 3"):
        performance_page.read(path)


def test_a_page_without_marks_is_refused() -> None:
    """Nothing is written where the table's place is unknown."""
    with pytest.raises(performance_page.ResultsError, match="table"):
        performance_page.render("# Performance\n", [])


def test_a_campaign_is_appended_and_the_record_reads_back(tmp_path: pathlib.Path) -> None:
    """One row each, with a head where there was no file; findings may hold anything."""
    path = tmp_path / "campaigns.csv"
    outcome = campaigns.Outcome(1000, 1003, faults=7, records=1234, findings=["seed 1001: a, b\n| c"])
    campaigns.record("nemesis pause", outcome, 0.25, path)
    campaigns.record("states", campaigns.Outcome(5, 6), 0.1, path)
    with path.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["campaign"], first["records"], first["seeds"]) == ("nemesis pause", "1234", "1000-1002")
    assert (first["hours"], first["faults"], first["findings"]) == ("0.25", "7", "seed 1001: a, b | c")
    assert (second["campaign"], second["findings"]) == ("states", "none")


def test_the_record_of_campaigns_is_whole() -> None:
    """Every row has every column; nothing was lost when it became data."""
    with campaigns.RECORD.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 82
    assert all(set(row) == set(campaigns.COLUMNS) and None not in row.values() for row in rows)
    assert sum(int(row["records"]) for row in rows) > 60_000_000


POINTS = [
    *(plots.Point("throughput", "one & more", 2**power, 100.0 * power + 1) for power in range(4)),
    *(plots.Point("latency", "p50", 2**power, 0.5 * 10**power) for power in range(3)),
    *(plots.Point("fail-over", "kill -9", 0.1 * number, 25.0 * number) for number in range(1, 5)),
]


def test_points_become_plots_that_a_browser_draws(tmp_path: pathlib.Path) -> None:
    """Well-formed, named for those who do not see them, one dot a point, and nothing outside of the frame.
    Points of earlier runs are left out."""
    path = tmp_path / "curves.csv"
    plots.record([plots.Point("throughput", "of another day", 1, 1e9)], 0.1, path)
    path.write_text(path.read_text().replace("20", "19", 1))
    plots.record(POINTS, 1.5, path)
    drawn = plots.render(path)
    assert set(drawn) == {"throughput.svg", "latency.svg", "fail-over.svg"}
    for name, text in drawn.items():
        picture = ElementTree.fromstring(text)
        space = {"s": "http://www.w3.org/2000/svg"}
        assert picture.findtext("s:title", namespaces=space)
        dots = picture.findall("s:circle", space)
        assert len(dots) == sum(f"{point.plot}.svg" == name for point in POINTS)
        for dot in dots:
            assert plots.LEFT <= float(dot.attrib["cx"]) <= plots.WIDTH - plots.RIGHT
            assert plots.TOP <= float(dot.attrib["cy"]) <= plots.HEIGHT - plots.BOTTOM
    assert "of another day" not in drawn["throughput.svg"]
    assert "load 1.5 before" in drawn["throughput.svg"]
    assert "one &amp; more" in drawn["throughput.svg"]


def test_larger_is_higher() -> None:
    """The axes point where readers expect it, logarithmic ones too."""
    for name in ("throughput", "latency"):
        plot = next(one for one in plots.PLOTS if one.name == name)
        dots = ElementTree.fromstring(plots.draw(plot, POINTS, "now")).findall(
            "s:circle", {"s": "http://www.w3.org/2000/svg"}
        )
        across = [float(dot.attrib["cx"]) for dot in dots]
        down = [float(dot.attrib["cy"]) for dot in dots]
        assert across == sorted(across)
        assert down == sorted(down, reverse=True)


@pytest.mark.parametrize("high", [0.67, 1.0, 99.0, 100.0, 38_882.0])
def test_an_axis_has_few_round_ticks_and_reaches_its_end(high: float) -> None:
    """Between three and nine, from zero to at least the largest value."""
    found = plots.ticks(0, high, False)
    assert 3 <= len(found) <= 10
    assert (found[0], found[-1] >= high * 0.999) == (0, True)
    assert plots.ticks(0.3, 70, True) == [0.1, 1.0, 10.0, 100.0]


def test_the_plots_are_those_of_the_newest_curves() -> None:
    """If this fails: `python scripts/plots.py` draws them anew."""
    for name, text in plots.render().items():
        assert (plots.LAB / name).read_text() == text, name
        assert f"../lab/{name}" in performance_page.PAGE.read_text()
