"""What agents do for the catalog's topics beside following it, each for its life.

Law of this file: it puts the parts together; what each of them does stands in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from shoal.agent.members.roster import Roster
from shoal.agent.peers.links import Links
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.process.clock import Clock
from shoal.agent.service.cluster_view import Joined
from shoal.agent.topics.births import BirthTelling
from shoal.agent.topics.rebirths import Rebirths
from shoal.agent.topics.tombstones import Burying


def duties(
    *,
    joined: Joined,
    roster: Roster,
    links: Links,
    clock: Clock,
    catalog_leader: Callable[[], str | None],
    replace_after_ms: int,
) -> dict[str, Coroutine[Any, Any, None]]:
    """To be run, by name."""

    def leads_catalog() -> bool:
        return catalog_leader() == roster.agent_id

    births = BirthTelling(
        newborns=joined.host.newborns,
        catalog=joined.catalog,
        peers=roster,
        catalog_leader=catalog_leader,
    )
    links.handle_request(PeerMessage.CATALOG_BORN, births.on_born)
    rebirths = Rebirths(
        roster=roster, catalog=joined.catalog, leads_catalog=leads_catalog, now_ms=clock.now_ms
    )
    burying = Burying(
        roster=roster,
        catalog=joined.catalog,
        leads_catalog=leads_catalog,
        now_ms=clock.now_ms,
        replace_after_ms=replace_after_ms,
    )
    return {"births": births.run(), "rebirths": rebirths.run(), "burying": burying.run()}
