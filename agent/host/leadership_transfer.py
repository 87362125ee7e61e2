"""Leaderships handed over before this agent stops.

Law of this file: it asks cores to transfer, and waits; who takes over is the core's choice.
"""

import asyncio
import logging
from collections.abc import Sequence

from shoal.agent.partition.replica import Replica
from shoal.replication.errors import InvalidChange, NotLeader

POLL_S = 0.01
NOBODY_MS = 500
"""How long nobody may be there to take a leadership before it is offered no more: who stood still, or makes
its links again, hears of the others meanwhile, and the last agent to stop waits no longer than that."""
ANSWERED_MS = 500
"""How long requests under way are waited for. A former leader hears within some heartbeats what its successor
commits. Once it has left it never does: its clients would wait until their connections are closed."""

logger = logging.getLogger(__name__)


async def hand_over_all(led: Sequence[Replica], timeout_ms: int) -> int:
    """Hand over every leadership that another voter can take; how many moved within the time.

    A leadership that the chosen voter did not take in time is offered again. One that no voter can take is
    not waited for long. Clients whose requests are under way are answered first, if that is soon.
    """
    leading = [replica for replica in led if len(replica.core.configuration.voters) > 1]
    if not leading:
        return 0
    clock = leading[0].host.clock
    deadline_ms = clock.now_ms() + timeout_ms
    offered_ms = {replica: clock.now_ms() for replica in leading}
    while offered_ms and (now_ms := clock.now_ms()) < deadline_ms:
        for replica, last_ms in list(offered_ms.items()):
            if not replica.is_leader:
                del offered_ms[replica]
            elif _offer(replica):
                offered_ms[replica] = now_ms
            elif now_ms - last_ms >= NOBODY_MS:
                logger.debug("%s: no other replica takes over the leadership", replica.group)
                del offered_ms[replica]
        if offered_ms:
            await asyncio.sleep(POLL_S)
    answered_by_ms = min(deadline_ms, clock.now_ms() + ANSWERED_MS)
    while any(replica.waiting and not replica.is_leader for replica in leading):
        if clock.now_ms() >= answered_by_ms:
            break
        await asyncio.sleep(POLL_S)
    return sum(not replica.is_leader for replica in leading)


def _offer(replica: Replica) -> bool:
    """Ask the best other voter to lead; False when there is none."""
    if replica.core.is_transferring:
        return True
    try:
        replica.core.transfer_leadership(None, replica.host.clock.now_ms())
    except (NotLeader, InvalidChange):
        return False
    replica.host.schedule(replica)
    return True
