"""The rows of `shoal top` as JSON, for programs.

Law of this file: pure. Names carry units; rates have one decimal.
"""

from __future__ import annotations

from typing import Any

from shoal.agent.cli.top.rows import ClusterRows


def document_of(cluster: ClusterRows, topic: str | None = None) -> dict[str, Any]:
    """The rows as JSON; of the partitions only a topic's, if one is named."""
    partitions = cluster.partitions if topic is None else cluster.of_topic(topic)
    return {
        "cluster": cluster.cluster,
        "asked": cluster.asked,
        "records_per_second": _rounded(cluster.rate),
        "agents": [
            {
                "id": row.id,
                "name": row.name,
                "status": row.status,
                "url": row.url,
                "partitions": row.held,
                "leads": row.led,
                "records_per_second": _rounded(row.rate),
                "lag": row.lag,
            }
            for row in cluster.agents
        ],
        "topics": [
            {
                "name": row.name,
                "partitions": row.partitions,
                "leaderless": row.leaderless,
                "under_replicated": row.under_replicated,
                "records": row.records,
                "bytes": row.size_bytes,
                "lag": row.lag,
                "records_per_second": _rounded(row.rate),
                "bytes_per_second": _rounded(row.bytes_rate),
            }
            for row in cluster.topics
        ],
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "leader": row.leader,
                "term": row.term,
                "replicas": list(row.holders),
                "log_end_offset": row.end,
                "lag": row.lag,
                "records_per_second": _rounded(row.rate),
            }
            for row in partitions
        ],
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)
