"""What an agent and every other command do without, though it may be installed: numpy and pandas.

Law of this file: one setting of the process, made before pyarrow is imported; it changes memory and speed,
never results, since nothing in a command uses either.

pyarrow imports numpy with itself, and pandas when it makes its first array: together 60 MB, and a fifth of a
second in which the loop does nothing else, while a leader should send its heartbeats.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

UNWANTED = frozenset(("numpy", "pandas"))


class _Refusing(MetaPathFinder):
    """Finds nothing, and lets nobody else find what is not wanted."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in UNWANTED:
            raise ModuleNotFoundError(f"shoal does without {fullname}", name=fullname)


def import_no_frames() -> bool:
    """From now on numpy and pandas are not found; False when one is there already, and nothing changes."""
    if UNWANTED & sys.modules.keys():
        return False
    sys.meta_path.insert(0, _Refusing())
    return True
