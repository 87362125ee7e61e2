"""A fold of a log's own entries that is as simple as one can be: the texts of all of them, in order."""

from __future__ import annotations

from shoal.format.batch import LogIndex, Stamp


class TextFold:
    """Entries are UTF-8; a checkpoint has them all."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.undoable: list[LogIndex] = []
        """Of the newest texts, the entries that may be cut."""

    def fold(self, stamp: Stamp, control: bytes) -> None:
        self.texts.append(control.rstrip(b"\0").decode())  # a UnicodeDecodeError is a ValueError
        self.undoable.append(stamp.index)

    def settle(self, index: LogIndex) -> None:
        self.undoable = [own for own in self.undoable if own > index]

    def undo_from(self, index: LogIndex) -> None:
        while self.undoable and self.undoable[-1] >= index:
            self.undoable.pop()
            self.texts.pop()

    def to_bytes(self) -> bytes:
        return "\n".join(self.texts).encode()

    def restore(self, data: bytes) -> None:
        assert not self.texts
        self.texts = data.decode().split("\n")

    def check_invariants(self) -> None:
        assert len(self.undoable) <= len(self.texts)
