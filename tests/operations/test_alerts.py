"""Alerts, dashboard and the page of metrics name what a running agent exposes, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import metrics_reference
import prometheus_text
import pytest
from prometheus_text import family_of, names_in

from shoal.agent.metrics.families import FAMILIES
from shoal.agent.metrics.measures import ABORTED
from shoal.agent.service.metrics import MEMBER_STATUSES, OUT_OF_SERVICE, ROLES
from tests.agent.agents import agents_in
from tests.operations.rules import ALERTS, DASHBOARD, alerts, grouped_by, selectors

OF_EVERY_TARGET = {"job", "instance"}
LABELS = {family.name: set(family.labels) | OF_EVERY_TARGET for family in FAMILIES}
VALUES = {
    ("shoal_members", "status"): set(MEMBER_STATUSES),
    ("shoal_members", "kind"): {"shoal", "serf"},
    ("shoal_replicas", "role"): set(ROLES.values()),
    ("shoal_replicas_out_of_service", "state"): {str(state) for state in OUT_OF_SERVICE},
}
INTERVAL = "$__rate_interval"
DOCUMENTS = metrics_reference.PAGE.parents[1]


def panels(dashboard: Any) -> Iterator[Any]:
    """Those that show something."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions() -> dict[str, str]:
    """By where they stand."""
    found = {alert.name: alert.expression for alert in alerts(ALERTS.read_text())}
    for panel in panels(json.loads(DASHBOARD.read_text())):
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


@pytest.mark.slow
async def test_a_running_agent_exposes_every_name_that_is_asked_for(tmp_path: Path) -> None:
    """As it stands in its text: a bucket for a bucket, a counter with its suffix."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        url = f"{agent.agent.url}/metrics?partitions"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            families = prometheus_text.parse(await answer.text())
    exposed = {name for name, _ in (key for family in families.values() for key in family.samples)}
    exposed |= families.keys() - {name for name, family in families.items() if family.kind == "histogram"}
    asked = expressions()
    assert len(asked) > 50
    for where, expression in asked.items():
        assert names_in(expression), where
        assert names_in(expression) <= exposed, where
    page = json.dumps(json.loads(DASHBOARD.read_text())["templating"])
    assert names_in(page.replace('\\"', "'")) <= exposed


@pytest.mark.parametrize(("where", "expression"), expressions().items(), ids=expressions())
def test_an_expression_means_what_it_should(where: str, expression: str) -> None:
    """Brackets close, labels and their values exist, only counters have a rate, quantiles keep `le`."""
    shown = re.sub(r'"[^"]*"', '""', expression)
    for opening, closing in ("()", "[]", "{}"):
        assert shown.count(opening) == shown.count(closing), where
    kinds = {family.name: family.kind for family in FAMILIES}
    known = set(OF_EVERY_TARGET)
    for name, labels in selectors(expression):
        family = family_of(name)
        known |= LABELS[family] | {"le"}
        assert labels <= LABELS[family], where
        for label, _, value in re.findall(rf'{name}{{[^}}]*?(\w+)(=~|=)"([^"$]+)"', expression):
            allowed = VALUES.get((family, label))
            assert allowed is None or set(value.split("|")) <= allowed, where
    assert grouped_by(expression) <= known, where
    for function, name in re.findall(r"\b(rate|increase|predict_linear)\((\w+)", expression):
        is_counter = kinds[family_of(name)] in ("counter", "histogram")
        assert is_counter == (function != "predict_linear"), where
    if "histogram_quantile" in expression:
        assert re.search(r"by \([^)]*\ble\b", expression), where
        assert "_bucket" in expression, where


def test_every_alert_says_what_to_do() -> None:
    """Severity, summary, description; labels in the texts are those that the expression keeps; one name
    once."""
    found = alerts(ALERTS.read_text())
    names = [alert.name for alert in found]
    assert len(found) >= 15
    assert len(set(names)) == len(names)
    for alert in found:
        assert re.fullmatch(r"Shoal[A-Z]\w+", alert.name)
        assert alert.labels.keys() == {"severity"}, alert.name
        assert alert.labels["severity"] in ("warning", "critical"), alert.name
        assert alert.annotations.keys() == {"summary", "description"}, alert.name
        kept = grouped_by(alert.expression) or OF_EVERY_TARGET
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(alert.annotations.values())))
        assert used <= kept, alert.name


def test_the_trouble_that_an_agent_counts_is_alerted_on() -> None:
    """What monitoring.md says to look for has a rule."""
    asked = {name for alert in alerts(ALERTS.read_text()) for name in names_in(alert.expression)}
    for name in (
        "shoal_members", "shoal_partitions_without_leader", "shoal_partitions_under_replicated",
        "shoal_disk_refusing", "shoal_damaged_ranges", "shoal_scrub_damage_found_total",
        "shoal_cleared_writes_total", "shoal_clock_doubted", "shoal_loop_lag_seconds_bucket",
        "shoal_fsync_seconds_bucket", "shoal_follower_lag_entries", "shoal_http_refused_total",
        "shoal_kept_topics", "shoal_cluster_level", "shoal_uptime_seconds", "shoal_understood_level",
    ):  # fmt: skip
        assert name in asked, name


@pytest.mark.parametrize(
    "line",
    [
        "      - record: x",
        "        expr: [1]\n        exp: 2",
        "\t- alert: X",
        "        for: ever",
        "            x: y",
    ],
)
def test_the_reader_of_rules_takes_nothing_else(line: str) -> None:
    """A rule that Prometheus would read otherwise than we do is an error."""
    text = f"groups:\n  - name: a\n    rules:\n      - alert: A\n        expr: up == 0\n{line}\n"
    with pytest.raises(AssertionError):
        alerts(text)


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """The parts of its model: ids once, panels that do not lie on one another, a data source that is
    chosen, variables that exist."""
    dashboard = json.loads(DASHBOARD.read_text())
    assert (dashboard["uid"], dashboard["title"]) == ("shoal", "Shoal")
    assert dashboard["schemaVersion"] >= 36
    variables = {item["name"]: item for item in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(dashboard):
        assert panel["type"] in ("timeseries", "stat"), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert (
                target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            )
            assert 'job=~"$job",instance=~"$instance"' in target["expr"], panel["title"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {INTERVAL[1:], "__all"}
    assert used == variables.keys()


def test_the_dashboard_shows_who_left() -> None:
    """The status of an answer that was not taken is asked for by its name."""
    assert any(f"|{ABORTED}" in expression for expression in expressions().values())


def test_the_page_of_metrics_is_the_table_of_the_code() -> None:
    """`scripts/metrics_reference.py` writes it anew."""
    assert metrics_reference.PAGE.read_text() == metrics_reference.render()


def test_pages_name_no_other_metric() -> None:
    """What they tell to look at exists."""
    names = {family.name for family in FAMILIES}
    for page in sorted(DOCUMENTS.rglob("*.md")):
        named = set(re.findall(r"\b((?:shoal|process)_[a-z]+_[a-z_]+)\b", page.read_text()))
        assert {family_of(name) for name in named} <= names, page.name
