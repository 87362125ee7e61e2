"""Strangers are named once a minute, however often they knock and under however many addresses."""

from shoal.membership.net.rejected_senders import INTERVAL_MS, MAX_OFFENDERS, Offenders


def test_one_line_a_minute_with_the_count() -> None:
    """At once when first heard, then what has come since, at the first packet after a minute."""
    offenders = Offenders()
    assert offenders.note("10.0.0.9:7946", "wrong key", 0) == "refused 10.0.0.9:7946: wrong key"
    assert [offenders.note("10.0.0.9:7946", "wrong key", now) for now in range(1, 500)] == [None] * 499
    line = offenders.note("10.0.0.9:7946", "wrong key", INTERVAL_MS)
    assert line is not None
    assert "10.0.0.9:7946 500 more times" in line
    assert offenders.note("10.0.0.9:7946", "wrong key", INTERVAL_MS + 1) is None
    assert offenders.refused == 502


def test_each_is_named() -> None:
    """A second one does not hide behind the first."""
    offenders = Offenders()
    assert offenders.note("a", "why", 0)
    assert offenders.note("b", "why", 1)
    assert offenders.note("b", "why", 2) is None


def test_a_flood_of_addresses_is_bounded_in_lines_and_memory() -> None:
    """A hundred thousand addresses in three minutes: some lines, a table of fixed size."""
    offenders = Offenders()
    lines = [
        line
        for number in range(100_000)
        if (line := offenders.note(f"10.0.{number}", "wrong key", number * 3 * INTERVAL_MS // 100_000))
    ]
    assert len(offenders._known) <= MAX_OFFENDERS + 1
    assert len(lines) <= 4 * (MAX_OFFENDERS + 1)
    assert any(line.startswith("refused others") for line in lines)
    assert offenders.refused == 100_000
