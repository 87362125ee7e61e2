"""Members of a gossip pool as a process: what scripts/bench gossip measures and kills.

Law of this file: the product's Membership and nothing of the agent around it. It prints one line when it
listens, one when every member sees all it was told to expect, and runs until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random

from shoal.membership.config import GossipConfig
from shoal.membership.net.gossip import Membership

POLL_S = 0.05


async def run(options: argparse.Namespace) -> None:
    """Start the members one after the other, each joining through the first address there is."""
    members = []
    contacts = [address.rpartition(":") for address in options.join]
    for number in range(options.count):
        config = GossipConfig.lan(name=f"{options.name}-{number}", tags={"role": "bench"})
        member = Membership(config, rng=random.Random(), on_event=lambda _: None)  # noqa: S311 -- jitter
        await member.start()
        members.append(member)
        known = [(host, int(port)) for host, _, port in contacts] or [("127.0.0.1", members[0].port)]
        await member.join(known)
    print(json.dumps({"ports": [member.port for member in members]}), flush=True)
    while options.expect and not all(_alive(member) >= options.expect for member in members):
        await asyncio.sleep(POLL_S)
    print(json.dumps({"complete": True}), flush=True)
    await asyncio.Event().wait()


def _alive(member: Membership) -> int:
    return sum(other.status == "alive" for other in member.members())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--join", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--expect", type=int, default=0, help="members to wait for")
    asyncio.run(run(parser.parse_args()))
