"""The reader of expositions that tests use is as strict as Prometheus and `promtool check metrics`: it stands
in for them where they are not installed."""

from __future__ import annotations

import prometheus_text
import pytest

GOOD = """\
# HELP x_items Some.
# TYPE x_items gauge
x_items{kind="a"} 1
x_items{kind="b"} -1.5e-07
# HELP x_done_total Some.
# TYPE x_done_total counter
x_done_total 3
# HELP x_seconds Some.
# TYPE x_seconds histogram
x_seconds_bucket{le="0.1"} 1
x_seconds_bucket{le="+Inf"} 2
x_seconds_sum 5
x_seconds_count 2
"""


def test_a_good_text_is_taken() -> None:
    """As the rest of this file changes it."""
    families = prometheus_text.parse(GOOD)
    assert list(families) == ["x_items", "x_done_total", "x_seconds"]
    assert families["x_items"].value(kind="b") == -1.5e-07


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("x_items{", "y_items{"),
        ("# HELP x_items Some.\n", ""),
        ("# TYPE x_items gauge\n", ""),
        ("# TYPE x_items gauge", "# TYPE x_items number"),
        ("# HELP x_items Some.", "# HELP x_items  "),
        ("# HELP x_items Some.", "# HELP x_items So\\me."),
        ('kind="b"', 'kind="a"'),
        ('kind="b"', 'kind="b",kind="c"'),
        ('kind="b"', 'kind="b",'),
        ('kind="b"', 'kind="\\q"'),
        ('kind="b"', 'Kind="b"'),
        ("kind", "le"),
        ("kind", "quantile"),
        ("kind", "instance"),
        ("kind", "__kind"),
        ("-1.5e-07", "1_000"),
        ("-1.5e-07", "-1.5e-07 1700000000000"),
        ("-1.5e-07", "nothing"),
        ("x_items", "x:items"),
        ("x_items", "xItems"),
        ("x_items", "x_items_total"),
        ("x_items", "x_items_count"),
        ("x_items", "x_gauge"),
        ("x_items", "x_ms"),
        ("x_items", "x_milliseconds"),
        ("x_items", "x_kibibytes_used"),
        ("x_items", "x_age_days"),
        ("x_done_total", "x_done"),
        ("x_done_total 3", "x_done_total -3"),
        ("x_done_total 3", "x_done_total NaN"),
        ("x_done_total", "x_items"),
        ("x_seconds_count 2", "x_seconds_count 3"),
        ("x_seconds_sum 5\n", ""),
        ("x_seconds_sum 5", "x_seconds_max 5"),
        ('x_seconds_bucket{le="+Inf"} 2\n', ""),
        ('x_seconds_bucket{le="0.1"} 1', 'x_seconds_bucket{le="0.1"} 3'),
        ('x_seconds_bucket{le="0.1"} 1\n', 'x_seconds_bucket{le="0.1"} 1\n# a remark\n'),
        ('x_seconds_bucket{le="0.1"} 1\n', 'x_seconds_bucket{le="0.1"} 1\n\n'),
        ("x_seconds_count 2\n", "x_seconds_count 2"),
    ],
)
def test_a_text_that_prometheus_would_not_take_as_it_is_meant_is_an_error(good: str, bad: str) -> None:
    """Refused, taken for something else, or warned of."""
    assert good in GOOD
    with pytest.raises((AssertionError, KeyError)):
        prometheus_text.parse(GOOD.replace(good, bad))
