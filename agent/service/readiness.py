"""Whether an agent can serve: the checks behind /readyz, each "ok" or the reason why not.

Law of this file: it looks and says; it changes nothing and waits for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shoal.agent.durable.catalog_version import NO_VERSION, CatalogVersion
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.host.free_space import MIN_FREE_BYTES
from shoal.agent.host.host import Host
from shoal.agent.partition.status import ServingState
from shoal.agent.topics.catalog_service import CatalogService


def catalog_check(
    service: CatalogService, host: Host, has_leader: bool, versions: Iterable[CatalogVersion]
) -> str:
    """versions: of the live peers' catalogs."""
    if service.halted is not None:
        return service.halted
    if not has_leader:
        status = host.status(CATALOG_GROUP) if host.has(CATALOG_GROUP) else None
        if status is None or status.state is ServingState.ACTIVE:
            return "the catalog has no leader"
        return f"the catalog has no leader, and its replica here is {status.state}: {status.reason}"
    if service.local.astray:
        return "the state of the catalog here is of another lineage than its log, and waits for a copy"
    newest = max(versions, default=NO_VERSION)
    if service.catalog.version < newest:
        return f"at version {service.catalog.version} of {newest}"
    if not service.is_current:
        return "principals are not compared with those of the catalog's leader yet"
    return "ok"


def disk_check(host: Host) -> str:
    """Whether there is room, and every replica here serves."""
    free_bytes = host.free_space.size_bytes
    if free_bytes < MIN_FREE_BYTES:
        return f"{free_bytes} bytes are free, fewer than {MIN_FREE_BYTES}"
    states = Counter(status.state for status in host.statuses())
    failed, lost = states[ServingState.FAILED], states[ServingState.LOST]
    if failed or lost:
        return f"replicas here: {failed} failed, {lost} lost; the log says why"
    return "ok"
