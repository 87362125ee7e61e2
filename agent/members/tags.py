"""Gossip tags of agents, and the facts about a member that follow from its tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shoal.addresses import host_of, named_url, plain_address
from shoal.agent.process.errors import StartError
from shoal.client.http.discovery import TAG_CLUSTER as TAG_CLUSTER
from shoal.client.http.discovery import TAG_HOST as TAG_HOST
from shoal.client.http.discovery import TAG_URL as TAG_URL
from shoal.membership.interface import Member
from shoal.membership.wire.serf import encode_tags

LIVE = ("alive", "suspect")  # a suspect may still answer; only a failed member is out
TAG_VERSION = "v"
TAG_NAME = "name"
TAG_CLUSTER_ID = "cid"
TAG_DOMAIN = "fd"
TAG_WEIGHT = "w"
TAG_DRAINED = "dr"
TAG_BOOT_NONCE = "boot"
TAG_PLACEMENT = "pv"
TAG_CATALOG = "cv"
TAG_TOPICS = "nt"
TAG_LEVELS = "lv"
TAGS = frozenset(
    (
        TAG_VERSION,
        TAG_NAME,
        TAG_CLUSTER,
        TAG_CLUSTER_ID,
        TAG_URL,
        TAG_HOST,
        TAG_DOMAIN,
        TAG_WEIGHT,
        TAG_DRAINED,
        TAG_BOOT_NONCE,
        TAG_PLACEMENT,
        TAG_CATALOG,
        TAG_TOPICS,
        TAG_LEVELS,
    )
)


LONGEST: Mapping[str, str] = {
    TAG_CLUSTER_ID: "f" * 32,
    TAG_DRAINED: "1",
    TAG_PLACEMENT: "9" * 24,
    TAG_CATALOG: "9" * 36,
    TAG_TOPICS: "1",
}
"""Those that change while an agent runs, as long as they may become."""


class Peer(NamedTuple):
    """One live member of our cluster name, as gossip shows it. `cluster_id` None: still empty."""

    agent_id: str
    cluster_id: bytes | None
    url: str


def check_length(tags: Mapping[str, str]) -> None:
    """Raises StartError for names that leave no room for what an agent has to say later."""
    try:
        encode_tags({**tags, **LONGEST})
    except ValueError as error:
        raise StartError(
            f"this agent's names do not fit into what gossip carries ({error}): shorten --advertise, --name,"
            " --cluster or --failure-domain"
        ) from None


def is_shoal(member: Member) -> bool:
    """A member without these tags is a plain Serf agent: a neighbour, never placed on (safety 6). So is one
    whose URL is not at its own address: the writer of a tag does not choose what agents connect to."""
    url = member.tags.get(TAG_URL)
    return TAG_CLUSTER in member.tags and url is not None and host_of(url) == plain_address(member.address)


def url_of(member: Member) -> str:
    """Where others reach the agent, under its name if it has told one: TAG_URL is always an address, which
    agents without names understand."""
    return named_url(member.tags[TAG_URL], member.tags.get(TAG_HOST, ""))


def is_ours(member: Member, cluster: str, cluster_id: bytes | None) -> bool:
    """Whether the member belongs into our list: no other cluster's name, no other cluster's id."""
    if TAG_CLUSTER not in member.tags or TAG_URL not in member.tags:
        return True
    if member.tags[TAG_CLUSTER] != cluster:
        return False
    theirs = member.tags.get(TAG_CLUSTER_ID, "")
    return cluster_id is None or theirs in ("", cluster_id.hex())
