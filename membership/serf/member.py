"""One member as the list shows it.

Law of this file: the record and its status names. Who changes it is core.py's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from shoal.membership.wire.messages import Endpoint


class Status(IntEnum):
    """Serf's numbers."""

    ALIVE = 1
    LEAVING = 2
    LEFT = 3
    FAILED = 4


@dataclass(slots=True)
class SerfMember:
    """One member. `suspected` is SWIM's, and shown only while alive; `since_ms` is the
    core's time of the last change of what is shown, or of its failure if it was declared
    left after it; `answered`: it did, to us, at some time; `status_ltime` is the Lamport
    time of the newest intent about it, 0 if there was none."""

    name: str
    endpoint: Endpoint
    tags: Mapping[str, str]
    vsn: bytes
    incarnation: int
    status: Status
    since_ms: int
    suspected: bool = False
    answered: bool = False
    status_ltime: int = 0

    @property
    def shown_status(self) -> str:
        """alive, suspect, failed, leaving or left."""
        if self.suspected and self.status == Status.ALIVE:
            return "suspect"
        return self.status.name.lower()
