"""Each rule of ops/alerts.yml fires for its trouble and for nothing less, on histories of three agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from tests.operations import promql
from tests.operations.rules import ALERTS, alerts, selectors

STEP_S = 60
LOOKS_S = 3_600
"""The rules are looked at when Prometheus has scraped for an hour."""
BEGIN_S = 7_200
"""Of the trouble: all was well until then."""
HOUR_S, DAY_S = 3_600, 86_400
INSTANCES = ("a:7070", "b:7070", "c:7070")
BUCKETS = ("0.001", "0.2", "0.5", "1", "2", "+Inf")
GIB = 2**30
RULES = {alert.name: alert for alert in alerts(ALERTS.read_text())}
Values = Callable[[float], float | None]
"""Of seconds since the trouble began; below 0 before it."""


def after(value: float | None, before: float | None) -> Values:
    """What the trouble makes of it."""
    return lambda seconds: before if seconds < 0 else value


def always(value: float) -> Values:
    """Whatever happens."""
    return lambda seconds: value


class Change(NamedTuple):
    """What a history has instead, or besides. `instances`: whose."""

    name: str
    values: Values
    labels: Mapping[str, str] = {}
    instances: tuple[str, ...] = ("a:7070",)


OF_GROUP = {"topic": "payments", "partition": "0", "group": "billing"}


def healthy() -> list[Change]:
    """What an agent exposes that has nothing to complain of."""
    found = [
        Change("shoal_uptime_seconds", lambda seconds: seconds + 10 * DAY_S),
        Change("shoal_members", always(3), {"status": "alive", "kind": "shoal"}),
        Change("shoal_members", always(0), {"status": "failed", "kind": "shoal"}),
        Change("shoal_replicas_out_of_service", always(1), {"state": "installing"}),
        Change("shoal_replicas_out_of_service", always(0), {"state": "failed"}),
        Change("shoal_replicas_out_of_service", always(0), {"state": "lost"}),
        Change("shoal_elections_total", always(5)),
        Change("shoal_follower_lag_entries", always(3), {"follower": "b"}),
        Change("shoal_disk_free_bytes", always(600 * GIB)),
        Change("shoal_disk_size_bytes", always(1_000 * GIB)),
        Change(
            "shoal_http_requests_total",
            lambda seconds: seconds + DAY_S,
            {"operation": "produce", "status": "200"},
        ),
        Change("process_open_fds", always(100)),
        Change("process_max_fds", always(1_000)),
        Change("shoal_tls_certificate_expires_seconds", always(20 * DAY_S), {"file": "tls_cert"}),
        Change("shoal_cluster_level", always(1)),
        Change("shoal_understood_level", always(1)),
        Change("shoal_group_window_full", always(0), OF_GROUP),
        Change("shoal_group_lag_seconds", always(3), OF_GROUP),
        Change("shoal_group_stopped_records", always(0), OF_GROUP),
    ]
    found += [
        Change(f"shoal_{name}", always(0))
        for name in (
            "partitions_without_leader",
            "partitions_under_replicated",
            "disk_refusing",
            "damaged_ranges",
            "scrub_damage_found_total",
            "cleared_writes_total",
            "clock_doubted",
            "clock_wrong_peers",
            "http_refused_total",
            "kept_topics",
            "group_dead_messages_total",
            "group_skipped_messages_total",
        )
    ]
    for name in ("shoal_loop_lag_seconds", "shoal_fsync_seconds", "shoal_commit_seconds"):
        found += slow(name, "0.001", 0)
    return [change._replace(instances=INSTANCES) for change in found]


def slow(name: str, up_to: str, share: float) -> list[Change]:
    """Of ten observations a second so many take that long, once the trouble has begun."""

    def counted(bound: str) -> Values:
        quick = BUCKETS.index(bound) < BUCKETS.index(up_to)
        return lambda seconds: 10 * (seconds + DAY_S) - (10 * share * max(0, seconds) if quick else 0)

    return [Change(f"{name}_bucket", counted(bound), {"le": bound}) for bound in BUCKETS]


def history_of(changes: list[Change], end_s: float, step_s: float) -> promql.History:
    found: dict[str, dict[promql.Labels, promql.Series]] = {}
    times = [step_s * number for number in range(int(end_s / step_s) + 1)]
    for name, values, labels, instances in (*healthy(), *changes):
        for instance in instances:
            key = frozenset({"job": "shoal", "instance": instance, **labels}.items())
            found.setdefault(name, {})[key] = [(at, values(at - BEGIN_S)) for at in times]
    return found


def fired(
    name: str, changes: list[Change], lasts_s: float, step_s: float = STEP_S
) -> dict[promql.Labels, float]:
    """By labels, how long after the trouble began."""
    end_s = BEGIN_S + lasts_s
    history = history_of(changes, end_s, step_s)
    times = [step_s * number for number in range(int(LOOKS_S / step_s), int(end_s / step_s) + 1)]
    hold = RULES[name].hold
    hold_s = int(hold[:-1]) * promql.SECONDS[hold[-1]] if hold else 0
    found = promql.firing(promql.parse(RULES[name].expression), hold_s, history, times)
    return {labels: at - BEGIN_S for labels, at in found.items()}


class Case(NamedTuple):
    """Who is named besides the job, at the earliest and the latest how long after the trouble began."""

    alert: str
    changes: list[Change]
    labels: dict[str, str]
    earliest_s: float
    latest_s: float
    step_s: float = STEP_S


A = {"instance": "a:7070"}
FAILED = {"status": "failed", "kind": "shoal"}
STATUS_500 = {"operation": "fetch", "status": "500"}
GONE = [Change("shoal_uptime_seconds", after(None, 1), instances=INSTANCES)]
FIRES = [
    Case("ShoalNoAgent", GONE, {}, 60, 180),
    Case("ShoalMemberFailed", [Change("shoal_members", after(1, 0), FAILED)], {}, 300, 360),
    Case("ShoalNoLeader", [Change("shoal_partitions_without_leader", after(2, 0))], {}, 15, 120),
    Case("ShoalUnderReplicated", [Change("shoal_partitions_under_replicated", after(1, 0))], {}, 600, 660),
    Case(
        "ShoalReplicaOutOfService",
        [Change("shoal_replicas_out_of_service", after(1, 0), {"state": "lost"})],
        {**A, "state": "lost"},
        60,
        120,
    ),
    Case(
        "ShoalManyElections", [Change("shoal_elections_total", lambda s: 5 + 0.2 * max(0, s))], {}, 600, 1_200
    ),
    Case(
        "ShoalFollowerLag",
        [Change("shoal_follower_lag_entries", after(1_001, 3), {"follower": "b"})],
        {"follower": "b"},
        600,
        660,
    ),
    Case(
        "ShoalCertificateExpires",
        [
            Change(
                "shoal_tls_certificate_expires_seconds",
                lambda seconds: 14 * DAY_S - 1 - seconds,
                {"file": "tls_cert"},
            )
        ],
        {**A, "file": "tls_cert"},
        HOUR_S,
        HOUR_S + 60,
    ),
    Case("ShoalDiskRefusing", [Change("shoal_disk_refusing", after(1, 0))], A, 0, 60),
    Case(
        "ShoalDiskFilling",
        [Change("shoal_disk_free_bytes", lambda s: GIB * (600 - 0.05 * max(0, s)))],
        A,
        900,
        2 * HOUR_S,
    ),
    Case("ShoalDiskFilling", [Change("shoal_disk_free_bytes", after(99 * GIB, 101 * GIB))], A, 900, 960),
    Case("ShoalDamage", [Change("shoal_damaged_ranges", after(1, 0))], A, 300, 360),
    Case("ShoalScrubberFoundDamage", [Change("shoal_scrub_damage_found_total", after(1, 0))], A, 0, 60),
    Case(
        "ShoalScrubberFoundDamage",  # before the first scrape of a process
        [
            Change("shoal_scrub_damage_found_total", after(1, None)),
            Change("shoal_uptime_seconds", lambda s: s if s >= 0 else None),
        ],
        A,
        0,
        60,
    ),
    Case("ShoalClearedWrites", [Change("shoal_cleared_writes_total", after(1, 0))], A, 0, 60),
    Case("ShoalClockSkew", [Change("shoal_clock_doubted", after(1, 0))], A, 60, 120),
    Case("ShoalClockSkew", [Change("shoal_clock_wrong_peers", after(2, 0))], A, 60, 120),
    Case("ShoalLoopLag", slow("shoal_loop_lag_seconds", "0.5", 0.02), A, 600, 1_000),
    Case("ShoalSlowFsync", slow("shoal_fsync_seconds", "0.5", 0.02), A, 600, 1_000),
    Case("ShoalSlowCommit", slow("shoal_commit_seconds", "2", 0.02), A, 600, 1_000),
    Case("ShoalOverloaded", [Change("shoal_http_refused_total", lambda s: max(0, s))], A, 600, 720),
    Case(
        "ShoalServerErrors",  # one answer, of which the series begins
        [Change("shoal_http_requests_total", after(1, None), STATUS_500)],
        {**A, "operation": "fetch"},
        60,
        120,
    ),
    Case(
        "ShoalServerErrors",
        [Change("shoal_http_requests_total", after(6, 5), STATUS_500)],
        {**A, "operation": "fetch"},
        60,
        120,
    ),
    Case("ShoalFewFilesLeft", [Change("process_open_fds", after(901, 100))], A, 600, 660),
    Case("ShoalKeptTopics", [Change("shoal_kept_topics", after(1, 0))], {}, 600, 660),
    Case("ShoalLevelBehind", [Change("shoal_understood_level", after(2, 1))], {}, DAY_S, DAY_S + 240, 240),
    Case("ShoalDeadLetters", [Change("shoal_group_dead_messages_total", after(1, 0))], A, 0, 60),
    Case("ShoalGroupSkips", [Change("shoal_group_skipped_messages_total", after(9, 0))], A, 0, 60),
    Case(
        "ShoalGroupWindowFull", [Change("shoal_group_window_full", after(1, 0), OF_GROUP)], OF_GROUP, 600, 660
    ),
    Case(
        "ShoalGroupBehind", [Change("shoal_group_lag_seconds", after(901, 3), OF_GROUP)], OF_GROUP, 900, 960
    ),
    Case(
        "ShoalGroupStopped",
        [Change("shoal_group_stopped_records", after(1, 0), OF_GROUP)],
        OF_GROUP,
        300,
        360,
    ),
]
SILENT = [
    ("ShoalNoAgent", [change._replace(instances=INSTANCES[:2]) for change in GONE], HOUR_S),
    ("ShoalMemberFailed", [Change("shoal_members", lambda s: int(0 <= s < 240), FAILED)], HOUR_S),
    (
        "ShoalUnderReplicated",
        [Change("shoal_partitions_under_replicated", lambda s: int(0 <= s < 540))],
        HOUR_S,
    ),
    (
        "ShoalReplicaOutOfService",
        [Change("shoal_replicas_out_of_service", after(9, 0), {"state": "installing"})],
        HOUR_S,
    ),
    ("ShoalManyElections", [Change("shoal_elections_total", after(1_000, 5))], HOUR_S),  # a host that died
    ("ShoalFollowerLag", [Change("shoal_follower_lag_entries", after(1_000, 3), {"follower": "b"})], HOUR_S),
    ("ShoalDiskFilling", [Change("shoal_disk_free_bytes", after(101 * GIB, 102 * GIB))], HOUR_S),
    ("ShoalScrubberFoundDamage", [Change("shoal_scrub_damage_found_total", always(1))], HOUR_S),  # long ago
    ("ShoalLoopLag", slow("shoal_loop_lag_seconds", "0.5", 0.005), HOUR_S),
    ("ShoalOverloaded", [Change("shoal_http_refused_total", after(50, 0))], HOUR_S),
    ("ShoalServerErrors", [Change("shoal_http_requests_total", always(5), STATUS_500)], HOUR_S),
    (
        "ShoalServerErrors",
        [Change("shoal_http_requests_total", after(5, None), {**STATUS_500, "status": "503"})],
        HOUR_S,
    ),
    ("ShoalFewFilesLeft", [Change("process_open_fds", after(899, 100))], HOUR_S),
    ("ShoalLevelBehind", [Change("shoal_understood_level", lambda s: 1 + (0 <= s < 0.9 * DAY_S))], DAY_S),
    ("ShoalDeadLetters", [Change("shoal_group_dead_messages_total", always(7))], HOUR_S),  # long ago
    ("ShoalGroupSkips", [Change("shoal_group_skipped_messages_total", always(7))], HOUR_S),
    (
        "ShoalGroupWindowFull",
        [Change("shoal_group_window_full", lambda s: int(0 <= s < 540), OF_GROUP)],
        HOUR_S,
    ),
    ("ShoalGroupBehind", [Change("shoal_group_lag_seconds", always(899), OF_GROUP)], HOUR_S),
]


@pytest.mark.parametrize("case", FIRES, ids=[case.alert for case in FIRES])
def test_an_alert_fires_for_its_trouble(case: Case) -> None:
    """In time, and with the labels that its texts show."""
    found = fired(case.alert, case.changes, case.latest_s, case.step_s)
    ((labels, seconds),) = found.items()
    assert dict(labels) == {"job": "shoal", **case.labels}
    assert case.earliest_s <= seconds <= case.latest_s


@pytest.mark.parametrize(("alert", "changes", "lasts_s"), SILENT, ids=[name for name, _, _ in SILENT])
def test_an_alert_is_silent_for_less(alert: str, changes: list[Change], lasts_s: float) -> None:
    """What passes by itself, or is below its bound."""
    assert fired(alert, changes, lasts_s, step_s=240 if lasts_s == DAY_S else STEP_S) == {}


@pytest.mark.parametrize("name", RULES)
def test_nothing_fires_while_all_is_well(name: str) -> None:
    """Though the history has all series that the rule asks for, or that trouble alone begins."""
    history = history_of([], BEGIN_S, STEP_S)
    for metric, _ in selectors(RULES[name].expression):
        assert history[metric]
    assert fired(name, [], HOUR_S) == {}


def test_every_alert_is_seen_to_fire() -> None:
    """A new rule brings its case."""
    assert {case.alert for case in FIRES} == RULES.keys()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("8 / 2 - 1", 3),
        ('sum (x{l="a"})', 1),
        ('sum (x{l!="a"}) + 0', 2),
        ('sum (x{l=~"a|b"})', 3),
        ("count (x > 1)", 1),
        ("max (x) / min (x)", 2),
        ("sum (x and x > 1)", 2),
        ("sum (x unless x > 1 or x)", 3),
        ("sum (x unless (x > 1 or x))", None),
        ("sum (x unless on (m) x > 1)", None),
        ("sum (increase(c[5m]))", 34),
        ("sum (rate(c[5m]))", 34 / 240),
        ("sum (c offset 5m)", 60),
        ("sum (predict_linear(g[10m], 60))", 90),
        ("sum (max_over_time(g[10m]))", 190),
        ("sum (histogram_quantile(0.5, h))", 0.15),
        ("sum (x[5m])", AttributeError),
        ("sum without (l) (x)", AssertionError),
        ("x >", AssertionError),
        ("x) > 1", AssertionError),
        ("x ^ 2", AssertionError),
    ],
)
def test_the_evaluator_knows_its_part(expression: str, value: float | type[Exception] | None) -> None:
    """Precedence, matching, windows; a counter that began anew; and what is not its part."""
    times = [60 * number for number in range(11)]
    history: promql.History = {
        "x": {frozenset({("l", "a")}): [(600, 1)], frozenset({("l", "b")}): [(600, 2)]},
        "c": {frozenset(): [(at, at / 5 if at < 500 else (at - 500) / 10) for at in times]},
        "g": {frozenset(): [(at, 200 - at / 6) for at in times]},
        "h": {
            frozenset({("le", "0.1")}): [(600, 2)],
            frozenset({("le", "0.2")}): [(600, 6)],
            frozenset({("le", "+Inf")}): [(600, 8)],
        },
    }
    if isinstance(value, type):
        with pytest.raises((value, TypeError)):
            promql.parse(expression)(history, 600)
        return
    found = promql.parse(expression)(history, 600)
    if isinstance(found, dict):
        found = found.get(frozenset())
    assert found == (None if value is None else pytest.approx(value))
