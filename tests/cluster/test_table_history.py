"""The judge of tables, on histories that were made up: each anomaly is named, and good ones are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from table_history import RowAct, Scanned, Stored, TableHistory, Watched, anomalies


def good() -> TableHistory:
    """a puts, b replaces by a condition, c is refused, d deletes; one answer is lost."""
    acts = [
        RowAct("a", "put", "k", "1", 200, 0, 1, partition=0, offset=0),
        RowAct("b", "get", "k", "1", 200, 2, 3),
        RowAct("b", "put-if", "k", "2", 200, 4, 5, expected="1", partition=0, offset=1),
        RowAct("c", "put-if", "k", "x", 412, 6, 7, expected="1", partition=0, current=1),
        RowAct("c", "local", "k", "1", 200, 8, 9),
        RowAct("d", "delete", "k", None, 200, 10, 11, partition=0, offset=2),
        RowAct("e", "put", "k", "3", None, 12, 13, partition=0),
        RowAct("b", "get", "k", None, 404, 14, 15),
        RowAct("b", "get", "k", "3", 200, 16, 17),
    ]
    log = {0: Stored("k", "1"), 1: Stored("k", "2"), 2: Stored("k", None), 3: Stored("k", "3")}
    changes = [((0, offset), stored) for offset, stored in log.items() if offset >= 1]
    scans = [
        Scanned("g", "", None, None, {"k": ("2", 1)}, {0: 2}, 6),
        Scanned("g", "", None, None, {"k": ("3", 3)}, {0: 4}, 18),
        Scanned("g", "k", "k", None, {}, {0: 4}, 18),
    ]
    return TableHistory(acts, {"x"}, [Watched("w", {0: 1}, changes)], scans, {0: log}, {0: 0})


def test_a_good_history_has_no_anomaly() -> None:
    """Nor one whose log's head is trimmed."""
    assert anomalies(good()) == []
    trimmed = good()
    trimmed.starts[0] = 2
    trimmed.logs[0] = {offset: item for offset, item in trimmed.logs[0].items() if offset >= 2}
    assert anomalies(trimmed) == []


def stale_read(history: TableHistory) -> None:
    history.acts.append(RowAct("f", "get", "k", "2", 200, 18, 19))


def lost_row(history: TableHistory) -> None:
    history.acts.append(RowAct("f", "get", "k", None, 404, 18, 19))


def baseless_refusal(history: TableHistory) -> None:
    history.acts.append(RowAct("f", "put-if", "k", "y", 412, 18, 19, expected="3", partition=0, current=7))


def refusal_by_what_is_undone(history: TableHistory) -> None:
    """The row that it names was cut from the log."""
    history.acts[3] = replace(history.acts[3], current=9)


def refused_value(history: TableHistory) -> None:
    history.acts.append(RowAct("f", "local", "k", "x", 200, 18, 19))


def lost_record(history: TableHistory) -> None:
    del history.logs[0][1]


def twice(history: TableHistory) -> None:
    history.logs[0][4] = Stored("k", "3")


def gap(history: TableHistory) -> None:
    del history.watches[0].changes[1]


def turned(history: TableHistory) -> None:
    history.watches[0].changes.reverse()


def other(history: TableHistory) -> None:
    history.watches[0].changes[0] = ((0, 1), Stored("k", "never"))


def scan_without_a_row(history: TableHistory) -> None:
    history.scans[1].rows.clear()


def scan_with_a_deleted_row(history: TableHistory) -> None:
    history.scans.append(Scanned("g", "", None, None, {"k": ("2", 1)}, {0: 3}, 12))


def scan_of_two_cuts(history: TableHistory) -> None:
    history.scans.append(Scanned("g", "", None, None, {"k": ("3", 3)}, {0: 2}, 6))


def stale_scan(history: TableHistory) -> None:
    history.scans.append(Scanned("g", "", None, None, {"k": ("1", 0)}, {0: 1}, 18))


def scan_beyond_its_range(history: TableHistory) -> None:
    history.scans.append(Scanned("g", "k", "k", None, {"k": ("3", 3)}, {0: 4}, 18))


def refused_winner(history: TableHistory) -> None:
    """Its first answer was lost, and the second one refuses it because of what it has stored."""
    history.acts[6] = replace(history.acts[6], kind="put-if", current=3)


def test_a_write_without_an_answer_counts_if_the_log_has_it() -> None:
    """One of which nothing is stored has never happened, so nobody may have seen it."""
    history = good()
    unknown = [RowAct("u", kind, "k", None, None, 0, 1, partition=0) for kind in ("delete", "delete-if")]
    history.acts += unknown
    assert anomalies(history) == []
    history.acts.append(RowAct("f", "get", "k", None, 404, 18, 19))
    assert [anomaly.name for anomaly in anomalies(history)] == ["NotLinearizable"]
    history.logs[0][4] = Stored("k", None)
    history.scans.clear()
    assert anomalies(history) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (stale_read, "NotLinearizable"),
        (lost_row, "NotLinearizable"),
        (baseless_refusal, "NotLinearizable"),
        (baseless_refusal, "RefusedByNothing"),
        (refusal_by_what_is_undone, "RefusedByNothing"),
        (refused_value, "ReadOfNothing"),
        (refused_winner, "WinnerRefused"),
        (scan_without_a_row, "ScanDiffers"),
        (scan_with_a_deleted_row, "ScanDiffers"),
        (scan_of_two_cuts, "ScanDiffers"),
        (stale_scan, "ScanDiffers"),
        (scan_beyond_its_range, "ScanDiffers"),
        (lost_record, "AcknowledgedMissing"),
        (twice, "StoredTwice"),
        (gap, "WatchDiffers"),
        (turned, "WatchDiffers"),
        (other, "WatchDiffers"),
    ],
)
def test_an_anomaly_is_named(change: Callable[[TableHistory], None], name: str) -> None:
    """Each change of the good history is found by its check."""
    history = good()
    change(history)
    found = {anomaly.name: anomaly for anomaly in anomalies(history)}
    assert name in found
    assert found[name].count >= 1
    assert found[name].examples
