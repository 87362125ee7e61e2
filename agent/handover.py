"""Leaderships handed over before this agent stops.

Law of this file: it asks cores to transfer, and waits; who takes over is the core's choice.
"""

import asyncio
import logging
from collections.abc import Sequence

from shoal.agent.replica import Replica
from shoal.replication.errors import InvalidChange, NotLeader

POLL_S = 0.01

logger = logging.getLogger(__name__)


async def hand_over_all(led: Sequence[Replica], timeout_ms: int) -> int:
    """Hand over every leadership that another voter can take; how many moved within the time.

    What the chosen voter did not take in time is offered again; what nobody can take is not waited for.
    """
    leading = [replica for replica in led if len(replica.core.configuration.voters) > 1]
    if not leading:
        return 0
    clock = leading[0].host.clock
    deadline_ms = clock.now_ms() + timeout_ms
    moving = leading
    while clock.now_ms() < deadline_ms:
        moving = [replica for replica in moving if replica.is_leader and offer(replica)]
        if not moving:
            break
        await asyncio.sleep(POLL_S)
    return sum(not replica.is_leader for replica in leading)


def offer(replica: Replica) -> bool:
    """Ask the best other voter to lead; False when there is none."""
    if replica.core.is_transferring:
        return True
    try:
        replica.core.transfer_leadership(None, replica.host.clock.now_ms())
    except (NotLeader, InvalidChange) as error:
        logger.info("the leadership of %s is not handed over: %s", replica.group, error)
        return False
    replica.host.schedule(replica)
    return True
