"""`shoal` that understands the feature levels of its first argument, as `2-3`; the command's own follow.

Law of this file: it changes the list of levels before any other part of the agent is imported, and nothing
else. A level above this code's own adds the catalog commands that change a topic: a stand-in for what a later
version will add, which must not be written before the cluster's level is raised.
"""

from __future__ import annotations

import sys

from shoal.agent import levels

LATER_ADDITIONS = ("change", "alter")


def understand(text: str) -> None:
    """These levels from now on. Raises ValueError for a text that is no range."""
    lowest, highest = (levels.Level(int(part)) for part in text.split("-"))
    read = sorted(name for name in sys.modules if name.startswith("shoal.agent."))
    assert read == ["shoal.agent.levels"], f"{read} may have read the list of levels before"
    if highest > levels.SUPPORTED.highest:
        for name in LATER_ADDITIONS:
            addition = (levels.AdditionKind.CATALOG_COMMAND, name)
            levels._LEVELS[addition] = levels.Level(levels.SUPPORTED.highest + 1)
    levels.SUPPORTED = levels.LevelRange(lowest, highest)


if __name__ == "__main__":
    understand(sys.argv.pop(1))
    from shoal.agent.cli.main import run

    run()
