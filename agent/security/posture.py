"""The posture of an agent: who can reach it, and what keeps strangers out.

Law of this file: pure. Bound to loopback an agent is open to this host alone. Bound to anything else it does
not start without TLS, authentication and a gossip key, unless somebody said --insecure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

SAID_AGAIN_S: Final = 3_600.0
"""An insecure agent says so at its start, and then at this interval."""


class Posture(StrEnum):
    """As documents, logs and pages name it."""

    LOOPBACK = "loopback"
    """Open to every user of this host, and to nobody else."""
    SECURED = "secured"
    """Nobody is let in without a proof."""
    INSECURE = "insecure"
    """Others reach it, and something is missing."""


class Protection(StrEnum):
    """All three are needed beyond loopback."""

    TLS = "TLS"
    AUTHENTICATION = "authentication"
    GOSSIP_KEY = "a gossip key"


class Exposure(NamedTuple):
    """Of one agent in this run. `bind`: the address. `missing`: in the order of Protection."""

    bind: str
    posture: Posture
    missing: tuple[Protection, ...]

    @property
    def is_insecure(self) -> bool:
        return self.posture is Posture.INSECURE


LOOPBACK_ONLY: Final = Exposure("127.0.0.1", Posture.LOOPBACK, tuple(Protection))
"""The posture of an agent of which nothing was told."""


def exposure_of(bind: str, *, is_loopback: bool, has: frozenset[Protection]) -> Exposure:
    """`has`: the protections that are in force. A missing one counts beyond loopback only."""
    missing = tuple(one for one in Protection if one not in has)
    if not missing:
        return Exposure(bind, Posture.SECURED, ())
    return Exposure(bind, Posture.LOOPBACK if is_loopback else Posture.INSECURE, missing)


def refused_start(exposure: Exposure, cluster: str, address: str) -> str:
    """The reason and the remedy. `address`: where others reach this agent."""
    if Protection.TLS in exposure.missing:
        remedy = f"`shoal secure init --cluster {cluster} --address {address}` makes all of it"
    elif Protection.GOSSIP_KEY in exposure.missing:
        remedy = "`shoal keygen` makes a key for --gossip-key, and gossip_verify_incoming has to be true"
    else:
        remedy = "leave out `authentication = off`"
    return (
        f"bound to {exposure.bind}, this agent needs {_listed(exposure.missing)}: everybody who reaches it"
        f" could read, change and delete everything. {remedy}; --insecure starts without"
    )


def warning(exposure: Exposure) -> str:
    """Of an agent that runs all the same."""
    return (
        f"INSECURE: bound to {exposure.bind} without {_listed(exposure.missing, 'or')}; everybody who reaches"
        " it may read, change and delete everything"
    )


def _listed(missing: tuple[Protection, ...], last: str = "and") -> str:
    *first, end = missing
    return f"{', '.join(first)} {last} {end}" if first else str(end)
