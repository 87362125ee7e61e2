"""The promise that the next consumer of an exclusive group is served within a session, and its anomaly.

Law of this file: pure. owner-lingers: a consumer was refused as if another one owned the partition, though no
other one had been heard of for a session, by any leader that could have answered. A leader that begins takes
the last owner for present. So nothing is said of a session after that, nor where nobody knows who led.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from group_history import Receive
from group_index import GroupIndex, Place

ROUNDING_S = 0.002
"""Agents count whole milliseconds."""


class _Window(NamedTuple):
    """A leader may have heard of the consumer at any time in between."""

    consumer: str
    begin: float
    end: float


def session_anomalies(index: GroupIndex) -> Iterator[tuple[str, str]]:
    """(name, text) of each."""
    history = index.history
    if history.led is None:
        return
    refused: dict[Place, list[Receive]] = defaultdict(list)
    for receive in history.receives:
        is_answered = receive.outcome == "ok" and receive.partition is not None
        if is_answered and receive.reason == "not-owner":
            refused[receive.place].append(receive)
    for place, receives in refused.items():
        if index.terms(place[0]).mode == "exclusive":
            windows = sorted(_windows(index, place), key=lambda item: item.end)
            for receive in receives:
                if _lingers(index, place, receive, windows):
                    said = f"{place}: {receive.consumer} at {receive.invoked_at:.3f}, last of others "
                    last = [item for item in windows if item.consumer != receive.consumer]
                    yield "owner-lingers", f"{said}{[w for w in last if w.begin < receive.invoked_at][-1:]}"


def _windows(index: GroupIndex, place: Place) -> Iterator[_Window]:
    """When consumers may have been heard of in a partition."""
    group, partition = place
    settled_at = index.history.settled_at
    for receive in index.history.receives:
        if receive.group == group and receive.partition in {None, partition}:
            end = settled_at if receive.outcome == "info" else receive.completed_at
            yield _Window(receive.consumer, receive.invoked_at, max(end, receive.completed_at))
    for presence in index.history.presences:
        if presence.group == group:
            end = settled_at if presence.outcome == "info" else presence.completed_at
            yield _Window(presence.consumer, presence.invoked_at, max(end, presence.completed_at))


def _lingers(index: GroupIndex, place: Place, receive: Receive, windows: list[_Window]) -> bool:
    since = receive.invoked_at - index.terms(place[0]).session_s - ROUNDING_S
    assert index.history.led is not None
    begun = index.history.led.get(place[1], [])
    if not begun or bisect_right(begun, since) != bisect_right(begun, receive.completed_at):
        return False
    for window in reversed(windows):
        if window.end < since:
            return True
        is_other = window.consumer != receive.consumer and window.begin < receive.completed_at
        if is_other and not _has_left(index, place, window, receive):
            return False
    return True


def _has_left(index: GroupIndex, place: Place, window: _Window, receive: Receive) -> bool:
    """Whether the leader heard for certain, behind all of the window, that the consumer goes."""
    return any(
        leave.consumer == window.consumer
        and leave.group == place[0]
        and place[1] in leave.heard
        and window.end <= leave.invoked_at
        and leave.completed_at <= receive.invoked_at
        for leave in index.history.leaves
    )
