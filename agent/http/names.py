"""Which names topics may have, and how to say so. Pure."""

from __future__ import annotations

import string

from shoal.agent.http.interface import Broker, Topic
from shoal.agent.http.parameters import shown
from shoal.errors import ShoalError

TOPIC_NAME_CHARACTERS_MAX = 249
_LETTERS = frozenset(string.ascii_letters + string.digits + "._-")


def check_topic_name(name: str) -> None:
    """ShoalError illegal-name, with the rule, for a name that no user's topic can have."""
    if (
        not name
        or len(name) > TOPIC_NAME_CHARACTERS_MAX
        or not _LETTERS.issuperset(name)
        or name in (".", "..")
    ):
        raise ShoalError(
            "illegal-name",
            f"the topic name {shown(name)} is not allowed:"
            f" 1 to {TOPIC_NAME_CHARACTERS_MAX} of a-z A-Z 0-9 . _ - are wanted, and neither . nor ..",
        )
    if name.startswith("_"):
        raise ShoalError(
            "illegal-name", f"the topic name {shown(name)} is not allowed: a leading _ is the system's"
        )


def known_topic(broker: Broker, name: str) -> Topic:
    """The topic; ShoalError illegal-name for what cannot be one, else unknown-topic."""
    try:
        return broker.topic(name)
    except ShoalError:
        if not name.startswith("_"):
            check_topic_name(name)
        raise
