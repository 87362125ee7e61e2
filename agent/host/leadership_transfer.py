"""Leaderships handed over before this agent stops.

Law of this file: it asks cores to transfer, and waits; who takes over is the core's choice.
"""

import asyncio
import logging
from collections.abc import Sequence

from shoal.agent.partition.replica import Replica
from shoal.replication.errors import InvalidChange, NotLeader

POLL_S = 0.01
NOBODY_POLLS = 50
"""In so many polls one after the other nobody may be there to take a leadership before it is offered no more.
Who makes its links again hears of the others meanwhile, and the last agent to stop waits half a second. They
are counted, as who stands still between two of them hears nobody in that time."""
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
    in_vain = dict.fromkeys(leading, 0)
    while in_vain and clock.now_ms() < deadline_ms:
        for replica, polls in list(in_vain.items()):
            if not replica.is_leader:
                del in_vain[replica]
            elif _offer(replica):
                in_vain[replica] = 0
            elif polls >= NOBODY_POLLS:
                logger.debug("%s: no other replica takes over the leadership", replica.group)
                del in_vain[replica]
            else:
                in_vain[replica] = polls + 1
        if in_vain:
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
