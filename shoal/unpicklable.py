"""A base of clients, producers and consumers: they live in one process and cannot be carried into another."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class LiveObject:
    """Has connections and a thread or an event loop: it is not to be pickled or copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Says what to do instead. Raises TypeError, as pickle does."""
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it has connections of its own. Pass the "
            "agents' URLs on, and open another one there"
        )
