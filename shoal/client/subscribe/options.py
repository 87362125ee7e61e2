"""How a consumer of a group receives, as its user says it.

Law of this file: values, and the name of a consumer that was given none.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import TypedDict


class SubscribeOptions(TypedDict, total=False):
    """How a consumer of a group receives."""

    consumer: str | None
    """Its name, for `shoal group describe`, and for partitions that come back to it in an exclusive group;
    None: this host, process and a random word."""
    mode: str | None
    """shared, exclusive or key-ordered: a group that does not exist is made so; None: as it is, or shared."""
    batch: int
    """Messages in one answer, at most."""
    max_bytes: int
    """Of one answer."""
    visibility_seconds: float | None
    """How long a message is held without an extension; None: the group's own time."""
    partition: int | None
    """Messages of this partition only."""


def default_consumer() -> str:
    """A name that nobody else has."""
    host = socket.gethostname().partition(".")[0].encode("ascii", "replace").decode()[:64]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
