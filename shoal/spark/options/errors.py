"""The error of everything here: one line, since it appears within a long Java trace."""

from __future__ import annotations


class SourceError(Exception):
    """A query that cannot be answered: one line with the fault and the cure."""


def data_loss(what: str) -> SourceError:
    """The error for records that are not there any more; it says how to go on without them."""
    return SourceError(f'{what}; to read what there is: .option("failOnDataLoss", "false")')
