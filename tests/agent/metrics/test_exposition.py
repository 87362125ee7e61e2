"""A reading becomes text that a strict reader takes, and every duration finds its bucket."""

from __future__ import annotations

import math

import prometheus_text
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from shoal.agent.metrics.exposition import PIECE_LINES, Reading, pieces
from shoal.agent.metrics.families import FAMILIES, MetricKind
from shoal.agent.metrics.histogram import BOUNDS_US, Histogram


def text_of(reading: Reading) -> str:
    return b"".join(pieces(reading)).decode()


def test_each_kind_of_value_has_its_lines() -> None:
    """One number, numbers by label, a histogram: head first, in the order of the table, whole numbers as
    such."""
    append = Histogram()
    for took_ns in (10_000, 50_000, 51_000, 3_000_000_000, 60_000_000_000):
        append.observe(took_ns)
    text = text_of(
        {
            "shoal_append_seconds": append,
            "shoal_members": {("alive", "shoal"): 2, ("failed", "shoal"): 1},
            "shoal_uptime_seconds": 1.5,
            "shoal_topics": 3,
        }
    )
    families = prometheus_text.parse(text)
    assert list(families) == [
        "shoal_uptime_seconds", "shoal_members", "shoal_topics", "shoal_append_seconds"
    ]  # fmt: skip
    lines = text.splitlines()
    for line in (
        "shoal_uptime_seconds 1.5",
        'shoal_members{status="failed",kind="shoal"} 1',
        "# TYPE shoal_topics gauge",
        "shoal_topics 3",
        'shoal_append_seconds_bucket{le="0.00005"} 2',
        'shoal_append_seconds_bucket{le="0.0001"} 3',
        'shoal_append_seconds_bucket{le="2"} 3',
        'shoal_append_seconds_bucket{le="5"} 4',
        'shoal_append_seconds_bucket{le="+Inf"} 5',
        "shoal_append_seconds_count 5",
        "shoal_append_seconds_sum 63.000111",
    ):
        assert line in lines, line


@given(st.lists(st.text(max_size=20), min_size=1, max_size=8, unique=True))
def test_any_text_may_be_a_label(names: list[str]) -> None:
    """Quotes, backslashes and ends of lines come back as they were; so says Prometheus' own reader, too."""
    text = text_of({"shoal_follower_lag_entries": {(name,): number for number, name in enumerate(names)}})
    ours = prometheus_text.parse(text)["shoal_follower_lag_entries"]
    (theirs,) = text_string_to_metric_families(text)
    for number, name in enumerate(names):
        assert ours.value(follower=name) == number
        assert theirs.samples[number].labels == {"follower": name}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(math.inf, "Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (1e-7, "1e-07"), (2**60, str(2**60))],
)
def test_every_number_can_be_shown(value: float, shown: str) -> None:
    """As Go reads them."""
    assert f"\nshoal_uptime_seconds {shown}\n" in text_of({"shoal_uptime_seconds": value})


def test_a_name_that_is_not_in_the_table_is_a_bug() -> None:
    """Nothing is exposed that no document names; a label too many is one as well."""
    with pytest.raises(AssertionError, match="shoal_surprise"):
        text_of({"shoal_surprise": 1})
    with pytest.raises(ValueError, match="zip"):
        text_of({"shoal_members": {("alive",): 1}})


def test_a_long_text_comes_in_pieces() -> None:
    """Whole lines, no more than PIECE_LINES of them at a time; together they are the text."""
    series = {("t", str(number)): number for number in range(3 * PIECE_LINES)}
    made = list(pieces({"shoal_partition_term": series, "shoal_partition_leader": series}))
    assert [piece.count(b"\n") for piece in made] == [PIECE_LINES] * 6 + [4]
    assert all(piece.endswith(b"\n") for piece in made)
    families = prometheus_text.parse(b"".join(made).decode())
    assert [len(family.samples) for family in families.values()] == [3 * PIECE_LINES] * 2


def test_the_lines_of_a_histogram_agree_though_it_is_counted_between_two_pieces() -> None:
    """What is observed while somebody else has the loop is in the next scrape, not in half of this one."""
    lag, fetch = Histogram(), Histogram()
    lag.observe(1)
    # So many lines lie before the second one that the first piece ends among its buckets.
    members = {(str(number), "shoal"): 0 for number in range(PIECE_LINES - 32)}
    reading = {"shoal_loop_lag_seconds": lag, "shoal_members": members, "shoal_fetch_seconds": fetch}
    made = []
    for piece in pieces(reading):
        made.append(piece)
        lag.observe(1)
        fetch.observe(1)
    assert made[0].splitlines()[-1].startswith(b"shoal_fetch_seconds_bucket")
    assert made[1].splitlines()[0].startswith(b"shoal_fetch_seconds_bucket")
    families = prometheus_text.parse(b"".join(made).decode())
    assert families["shoal_fetch_seconds"].samples["shoal_fetch_seconds_count", frozenset()] == 0


@given(st.integers(min_value=0, max_value=2**50))
def test_a_duration_is_in_the_first_bucket_that_holds_it(took_ns: int) -> None:
    """Its bound included."""
    histogram = Histogram()
    histogram.observe(took_ns)
    cumulative = histogram.cumulative()
    assert cumulative[-1] == histogram.count == 1
    assert [bool(n) for n in cumulative[:-1]] == [took_ns <= bound * 1_000 for bound in BOUNDS_US]
    assert histogram.sum_ns == took_ns


def test_names_follow_the_conventions() -> None:
    """Base units at the end, `_total` for counters alone, a line of help that is a sentence, labels once."""
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert family.name.startswith(("shoal_", "process_")), family.name
        assert (family.kind is MetricKind.COUNTER) == family.name.endswith("_total"), family.name
        assert not any(part in family.name.split("_") for part in ("ms", "us", "milliseconds", "mb", "kb"))
        assert family.kind is not MetricKind.HISTOGRAM or family.name.endswith("_seconds"), family.name
        assert family.help.endswith("."), family.name
        assert not set(family.help) & set("\\\n"), family.name
        assert family.help[0].isupper() or family.help[0].isdigit(), family.name
        assert len(set(family.labels)) == len(family.labels), family.name
        assert family.per_partition == (family.labels[:2] == ("topic", "partition")), family.name
