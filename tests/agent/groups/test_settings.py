"""The settings of a group: legal ones are kept exactly, others are refused by name."""

import pathlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.groups.settings import (
    GroupSettings,
    changed,
    check_group_name,
    dead_topic,
    duration_ms,
    retry_delay_ms,
    settings_from_body,
)
from shoal.agent.receive import GroupMode
from shoal.errors import ShoalError

WEEK_MS = 7 * 86_400_000
SETTINGS = st.builds(
    GroupSettings,
    mode=st.sampled_from(GroupMode),
    start=st.sampled_from(["earliest", "latest", "@2026-01-01T00:00:00.000000Z"]),
    visibility_ms=st.integers(1_000, 43_200_000),
    max_attempts=st.none() | st.integers(1, 100),
    retry_first_ms=st.integers(0, WEEK_MS),
    retry_factor=st.integers(1, 10),
    retry_most_ms=st.integers(0, WEEK_MS),
    dead=st.sampled_from(["letter", "stop", "drop"]),
    session_ms=st.integers(1_000, 300_000),
    paused=st.booleans(),
)


@given(SETTINGS)
def test_settings_come_back_from_their_document(settings: GroupSettings) -> None:
    """And the version says whether two are equal."""
    again = settings_from_body(settings.to_document())
    assert again == settings
    assert again.version() == settings.version()
    assert (settings.version() == GroupSettings().version()) == (settings == GroupSettings())


def test_no_body_means_defaults() -> None:
    """The first receive of an unknown group makes it so."""
    assert settings_from_body(None) == settings_from_body({}) == GroupSettings()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"mode": "fast"}, "mode must be one of shared, exclusive, key-ordered"),
        ({"mode": None}, "mode must be one of"),
        ({"start": "now"}, 'start must be "earliest", "latest"'),
        ({"start": "@yesterday"}, "time 'yesterday' is neither"),
        ({"visibility": 0}, "visibility must be a duration from 1s to 12h"),
        ({"visibility": "7d"}, "visibility must be a duration from 1s to 12h"),
        ({"visibility": True}, "visibility must be a duration"),
        ({"visibility": None}, "visibility must be a duration"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 100, or null"),
        ({"max_attempts": 101}, "max_attempts must be a whole number from 1 to 100, or null"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"retry": {"first": "-1s"}}, "retry.first must be a duration from 0ms to 7d"),
        ({"retry": {"most": "8d"}}, "retry.most must be a duration from 0ms to 7d"),
        ({"retry": {"factor": 11}}, "retry.factor must be a whole number from 1 to 10"),
        ({"retry": {"factor": 1.5}}, "retry.factor must be a whole number from 1 to 10"),
        ({"retry": {"last": "1s"}}, "unknown field 'last' in retry"),
        ({"retry": 5}, "retry must be an object with factor, first, most"),
        ({"dead": "bury"}, "dead must be one of letter, stop, drop"),
        ({"session": "10m"}, "session must be a duration from 1s to 5m"),
        ({"paused": "yes"}, "paused must be true or false"),
        ({"visiblity": "1m"}, "did you mean 'visibility'"),
    ],
)
def test_illegal_settings_are_named(body: dict[str, Any], named: str) -> None:
    """With the legal values."""
    with pytest.raises(ShoalError, match="bad-request") as caught:
        settings_from_body(body)
    assert named in caught.value.detail
    if set(body) & {"mode", "start"}:
        return
    with pytest.raises(ShoalError, match="bad-request"):
        changed(GroupSettings(), body)


def test_a_change_keeps_what_it_does_not_name() -> None:
    """Also within retry."""
    current = GroupSettings(visibility_ms=60_000, retry_most_ms=7_000, dead="stop")
    after = changed(current, {"retry": {"first": "2s"}, "paused": True})
    assert after == GroupSettings(
        visibility_ms=60_000, retry_first_ms=2_000, retry_most_ms=7_000, dead="stop", paused=True
    )


@pytest.mark.parametrize("body", [{"mode": "exclusive"}, {"start": "latest"}, {}, None])
def test_a_change_of_what_is_fixed_or_of_nothing_is_refused(body: dict[str, Any] | None) -> None:
    """And says what can be changed."""
    with pytest.raises(ShoalError, match=r"cannot be changed|nothing to change") as caught:
        changed(GroupSettings(), body)
    assert "visibility" in caught.value.detail


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, ".", "..", "gr\u00fcn", "a b", "a\n"])
def test_illegal_names(name: str) -> None:
    """Names are part of URLs and of topics."""
    with pytest.raises(ShoalError, match="illegal-name"):
        check_group_name("t", name)


def test_a_name_whose_dead_letters_would_have_none() -> None:
    """The dead letters' topic must be a topic."""
    group = "g" * 64
    topic = "t" * (249 - len(".dead.") - 64)
    check_group_name(topic, group)
    assert len(dead_topic(topic, group)) == 249
    with pytest.raises(ShoalError, match="250 characters"):
        check_group_name(topic + "t", group)


def test_a_start_at_a_time() -> None:
    """Kept in one form, whatever form it was given in."""
    settings = settings_from_body({"start": "@1767225600000"})
    assert settings.start == "@2026-01-01T00:00:00.000000Z"
    assert settings.start_us() == 1_767_225_600_000_000
    assert GroupSettings().start_us() is None


@given(SETTINGS, st.integers(1, 2**16))
def test_retry_delays_grow_to_the_most(settings: GroupSettings, attempts: int) -> None:
    """first * factor ** (attempts - 1), in whole numbers."""
    delay_ms = retry_delay_ms(settings, attempts)
    power = min(attempts - 1, 64)
    assert delay_ms == min(settings.retry_first_ms * settings.retry_factor**power, settings.retry_most_ms)


def test_the_default_delays() -> None:
    """A second, doubled, up to five minutes."""
    delays = [retry_delay_ms(GroupSettings(), attempts) for attempts in (1, 2, 3, 9, 10, 60_000)]
    assert delays == [1_000, 2_000, 4_000, 256_000, 300_000, 300_000]


@pytest.mark.parametrize(("value", "expected"), [("0s", 0), ("10s", 10_000), (250, 250), ("7d", WEEK_MS)])
def test_the_delay_of_a_nack(value: Any, expected: int) -> None:
    """Zero to seven days."""
    assert duration_ms(value, "delay") == expected


@pytest.mark.parametrize("value", ["8d", "-1s", -1, None, 1.5, True, "soon"])
def test_an_illegal_delay(value: Any) -> None:
    """Refused with the legal ones."""
    with pytest.raises(ShoalError, match="delay must be a duration from 0ms to 7d"):
        duration_ms(value, "delay")


def test_every_setting_stands_on_the_page_of_groups() -> None:
    """With its default; a part of one, too."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "groups.md").read_text()
    section = page.split("## Settings\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_.]+)` \|[^|]*\| `(\w+)` \|", section, re.MULTILINE)
    document = GroupSettings().to_document()
    retry = {f"retry.{name}": value for name, value in document.pop("retry").items()}
    wanted = {name: str(value).lower() for name, value in (document | retry).items()}
    assert dict(rows) == wanted
