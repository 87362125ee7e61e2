"""Where a consumer group is asked.

Law of this file: paths only.
"""

from __future__ import annotations

from urllib.parse import quote

from shoal.client.http.requests import topic_path
from shoal.errors import ShoalError


def group_path(topic: str, group: str, partition: int | None = None) -> str:
    """The path of a group, or of its part in one partition. Raises ShoalError illegal-name for names that a
    path cannot hold."""
    if group in ("", ".", ".."):
        raise ShoalError(
            "illegal-name", f"{group!r} is no group name: use letters, digits, . _ - (not . or ..)"
        )
    where = "" if partition is None else f"/partitions/{partition}"
    return f"{topic_path(topic)}{where}/groups/{quote(group, safe='')}"
