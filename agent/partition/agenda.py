"""When a replica has to have its next turn on behalf of the objects around it.

Law of this file: numbers that these objects set themselves, and the replica reads.
"""


class Agenda:
    """Deadlines on the monotonic clock; None for none, and where all are None the observers of turns are not
    told of any. `gathered_ms`: the first submission that has gathered runs out of time. `groups_ms`:
    something in a consumer group falls due, which a request does at once."""

    __slots__ = ("gathered_ms", "groups_ms", "groups_wait")

    def __init__(self) -> None:
        self.gathered_ms: int | None = None
        self.groups_ms: int | None = None
        self.groups_wait = False
        """Operations of consumer groups go on when the sync under way has ended, as submissions do that have
        gathered."""
