"""Events that a replica tells the objects around it, in the turn in which they happen.

Law of this file: an observer is given to the replica when that is built, and learns nothing in another way.
A notification neither waits nor raises.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shoal.format.batch import LogIndex


class ReplicaObserver:
    """Inherit from it and override what is needed: a replica calls no method that is not overridden."""

    def turn_begins(self, now_ms: int) -> None:
        """At the head of each turn that the agenda asks for: what has gathered becomes an entry here."""

    def committed(self) -> None:
        """The committed end has moved."""

    def reads_confirmed(self, read_states: Sequence[tuple[int, LogIndex]]) -> None:
        """A majority has confirmed the leader: the token of each question, and the commit index then."""

    def role_changed(self) -> None:
        """The role is another one, or the replica has stopped."""


class Observers:
    """The methods that a replica calls, by what happens."""

    __slots__ = ("committed", "reads_confirmed", "role_changed", "turn_begins")

    def __init__(self, observers: Sequence[ReplicaObserver]) -> None:
        def overridden(name: str) -> tuple[Callable[..., Any], ...]:
            inherited = getattr(ReplicaObserver, name)
            return tuple(
                getattr(item, name) for item in observers if getattr(type(item), name) is not inherited
            )

        self.turn_begins: tuple[Callable[[int], None], ...] = overridden("turn_begins")
        self.committed: tuple[Callable[[], None], ...] = overridden("committed")
        self.reads_confirmed: tuple[Callable[[Sequence[tuple[int, LogIndex]]], None], ...]
        self.reads_confirmed = overridden("reads_confirmed")
        self.role_changed: tuple[Callable[[], None], ...] = overridden("role_changed")
