"""How a client finds agents without a URL: by gossip seeds or by mDNS, as the agents find each other.

Law of this file: it ends at URLs. The gossip code is loaded only when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shoal.addresses import host_of, named_url, plain_address
from shoal.errors import ClientError

if TYPE_CHECKING:
    from shoal.membership.net.mdns import Found

DEFAULT_GOSSIP_PORT: Final = 7946
LISTEN_SECONDS: Final = 3.0
"""For mDNS: agents answer a question within a second; after this no agent is there."""
TAG_CLUSTER: Final = "cl"
TAG_URL: Final = "url"
TAG_HOST: Final = "host"
"""The tags under which an agent tells its cluster's name, its HTTP address, and the name that it is to be
reached by, if it has one."""


async def urls_of_seeds(
    seeds: Sequence[str], *, cluster: str | None = None, gossip_key: str | None = None, gossip_label: str = ""
) -> list[str]:
    """The URLs of all agents that the first answering seed ("host" or "host:port", a gossip address) knows;
    with `cluster` only that one's. Raises ClientError, also for agents of several clusters."""
    from shoal.membership.net.guest import NobodyAnswered, ask_pool
    from shoal.membership.wire.keyring import KeyringError

    reasons = []
    for seed in seeds:
        host, port = _address(seed)
        try:
            members = await ask_pool(host, port, key=gossip_key, label=gossip_label)
        except NobodyAnswered as error:
            reasons.append(str(error))
            continue
        except KeyringError as error:
            raise ClientError(str(error)) from error
        agents = [
            member
            for member in members
            # A member's tag may not choose where this client connects to. Agents hold to the same rule.
            if host_of(member.tags.get(TAG_URL, "")) == plain_address(member.address)
            and cluster in (None, member.tags.get(TAG_CLUSTER))
        ]
        clusters = sorted({member.tags.get(TAG_CLUSTER, "") for member in agents})
        if len(clusters) > 1:  # pools grow together when an agent takes the address of a dead one
            raise ClientError(
                f"{seed} is in one pool with the clusters {', '.join(clusters)}: "
                f"name a URL, or mdns={clusters[0]!r}"
            )
        if agents:
            return sorted(named_url(member.tags[TAG_URL], member.tags.get(TAG_HOST, "")) for member in agents)
        reasons.append(f"{seed} knows no agent{'' if cluster is None else f' of cluster {cluster!r}'}")
    hint = "a seed is a gossip address like 10.0.0.1:7946; a sealed pool needs gossip_key"
    raise ClientError(f"no seed led to an agent: {'; '.join(reasons) or 'none was given'} ({hint})")


async def urls_by_mdns(
    cluster: str | None = None, *, gossip_key: str | None = None, gossip_label: str = ""
) -> list[str]:
    """The URLs of the agents of `cluster` that mDNS finds on this host or network; without a name those
    of the only cluster there is. Raises ClientError where no agent answers, or agents of several clusters."""
    found = await _listen(cluster)
    clusters = sorted({entry.cluster for entry in found})
    if not found:
        whom = "no agent" if cluster is None else f"no agent of cluster {cluster!r}"
        raise ClientError(f"mDNS found {whom} within {LISTEN_SECONDS:g} s; name a URL, or a seed")
    if len(clusters) > 1:
        raise ClientError(f"mDNS found the clusters {', '.join(clusters)}: name one, mdns={clusters[0]!r}")
    seeds = [f"{entry.address}:{entry.port}" for entry in found]
    return await urls_of_seeds(seeds, cluster=clusters[0], gossip_key=gossip_key, gossip_label=gossip_label)


async def _listen(cluster: str | None) -> list[Found]:
    """Agents that announce themselves: all within LISTEN_SECONDS, or the first if its cluster was named."""
    from shoal.membership.net.mdns import Discovery

    heard: dict[str, Found] = {}
    enough = asyncio.Event()

    def on_found(entry: Found) -> None:
        if cluster in (None, entry.cluster):
            heard[entry.agent_id] = entry
            if cluster is not None:
                enough.set()

    listener = Discovery.listener(on_found)
    try:
        await listener.start()
        async with asyncio.timeout(LISTEN_SECONDS):
            await enough.wait()
    except TimeoutError:
        pass  # the agents that were heard until now are all there are
    except OSError as error:
        raise ClientError(f"mDNS is not available here ({error}): name a URL, or a seed") from error
    finally:
        await listener.stop()
    return list(heard.values())


def _address(seed: str) -> tuple[str, int]:
    host, colon, port = seed.rpartition(":") if seed.count(":") == 1 else (seed, "", "")
    if (colon and not port.isdecimal()) or not (host or seed):
        raise ClientError(f"{seed!r} is no gossip address, which is like 10.0.0.1:7946")
    return (host, int(port)) if colon else (seed.strip("[]"), DEFAULT_GOSSIP_PORT)
