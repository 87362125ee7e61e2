"""A catalog recovered by force that does not know a topic: whoever holds it keeps it, and gives it back."""

from __future__ import annotations

import json
import pathlib
import signal
import urllib.request
from collections.abc import Callable
from typing import Any

import cluster as local
import pytest
from real_agents import leaders, run_shoal, wait_until

pytestmark = pytest.mark.slow
VALUES = [f"paid {number}" for number in range(5)]


def ask(method: str, url: str, body: object) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=100) as answer:
        return json.load(answer)


def catalog_holders(url: str) -> dict[str, str]:
    """Roles by the agents' names."""
    members = local.get(url, "/v1/members")["members"]
    roles = [(member["name"], item) for member in members for item in member["partitions"]]
    return {name: item["role"] for name, item in roles if item["topic"] == "_catalog"}


def values(url: str, path: str) -> list[str]:
    return [record["value"] for record in local.get(url, path)["records"]]


def end(*agents: Any) -> None:
    for agent in agents:
        agent.signal(signal.SIGKILL)
    wait_until(lambda: not any(agent.is_alive() for agent in agents), "they are gone")


def back(agents: Any, agent: Any) -> Any:
    place = agents.agents.index(agent)
    agents.restart(agent)
    return agents.agents[place]


def recovered(url: str, topic: str) -> bool:
    flags = ("--unsafe", "--yes-i-accept-data-loss")
    return run_shoal("partition", "recover", topic, "0", "--agent", url, *flags).returncode == 0


def test_what_a_recovered_catalog_does_not_know_is_kept_and_adopted(
    start_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survivor of the catalog was away when a topic was made. Who holds the topic comes back later: it
    deletes nothing, says so, and serves the records once the topic is adopted."""
    monkeypatch.setenv("SHOAL_REPLACE_AFTER", "60m")
    agents = start_cluster()
    agents.add("turbot")
    url = agents.agents[0].url
    wait_until(lambda: len(catalog_holders(url)) == 3, "the catalog has three replicas")
    roles = catalog_holders(url)
    survivor = next(agent for agent in agents.agents if roles.get(agent.name) == "follower")
    holder = next(agent for agent in agents.agents if agent.name not in roles)
    lost = [agent for agent in agents.agents if agent not in (survivor, holder)]
    end(survivor)
    alive = f"{lost[0].url}", "/v1/members?status=alive"
    wait_until(lambda: len(local.get(*alive)["members"]) == 3, "the survivor is missed")
    made = wait_until(
        lambda: ask("PUT", f"{lost[0].url}/v1/topics/orders", {"replication_factor": 3}), "orders is made"
    )
    records = {"records": [{"value": value} for value in VALUES]}
    ask("POST", f"{holder.url}/v1/topics/orders/records", records)
    copy = "/v1/topics/orders/partitions/0/records?offset=0&consistency=local"
    wait_until(lambda: values(holder.url, copy) == VALUES, "the fourth agent holds what was acknowledged")
    files = pathlib.Path(agents.directory) / "data" / holder.name / "topics" / made["id"]
    wait_until(lambda: list(files.glob("0/*.arrows")), "the fourth agent holds the topic")
    end(*lost, holder)

    survivor = back(agents, survivor)
    wait_until(lambda: recovered(survivor.url, "_catalog"), "the catalog is recovered")
    for name in ("invoices", "people"):
        wait_until(lambda name=name: ask("PUT", f"{survivor.url}/v1/topics/{name}", {}), "topics are made")
    holder = back(agents, holder)
    status = wait_until(
        lambda: (ran := run_shoal("status", "--agent", holder.url)).stdout.find("kept: orders") > 0 and ran,
        "status tells of it",
    )
    assert status.returncode == 1
    said = pathlib.Path(holder.log)
    wait_until(lambda: "is not in the catalog" in said.read_text(), "a warning is logged")
    assert list(files.glob("0/*.arrows"))
    assert local.get(holder.url, "/v1/agent")["kept"] == [
        {"id": made["id"], "name": "orders", "partitions": [0]}
    ]
    listed = wait_until(
        lambda: (
            (ran := run_shoal("topic", "adopt", "--agent", survivor.url)).stdout.find("orders") > 0 and ran
        ),
        "the holder answers the survivor",
    )
    assert (listed.returncode, holder.name in listed.stdout) == (0, True), listed.stderr

    adopted = run_shoal("topic", "adopt", "orders", "--agent", holder.url)
    assert adopted.returncode == 0, adopted.stderr
    known = wait_until(lambda: local.get(survivor.url, "/v1/topics/orders"), "the survivor knows it as well")
    assert known["id"] == made["id"]
    wait_until(lambda: recovered(holder.url, "orders"), "the lost majority of the topic is recovered")
    wait_until(lambda: leaders(survivor.url, "orders").get(0) == holder.url, "the holder leads it")
    assert values(survivor.url, "/v1/topics/orders/partitions/0/records?offset=0") == VALUES
