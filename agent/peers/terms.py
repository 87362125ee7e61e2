"""The terms that two agents agree on before they greet: the version of the link protocol, and their levels.

Law of this file: pure. Each side says its terms in a header of the upgrade. Versions of Shoal without the
header pass over it: they speak link version 1 and understand level 1. The greeting then has the version that
both chose.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shoal.agent.levels import (
    BEFORE_LEVELS,
    FIRST_LEVEL,
    SUPPORTED,
    Level,
    LevelRange,
    range_from_text,
    refusal,
)

HEADER = "Shoal-Link"
LINK_VERSIONS = (1, 1)
"""The lowest and the highest version of the link protocol that this agent speaks."""
MAX_TERMS_CHARACTERS = 128
_TERMS = re.compile(
    r"versions=([1-9][0-9]{0,3})-([1-9][0-9]{0,3}) levels=([0-9]{1,4}-[0-9]{1,4})"
    r" level=([1-9][0-9]{0,3})(?![0-9])"
)


class TermsError(Exception):
    """The two sides cannot be linked. The text says why, and what to do."""


class LinkTerms(NamedTuple):
    """One side's. `level`: of its cluster, as far as it knows."""

    lowest_version: int = LINK_VERSIONS[0]
    highest_version: int = LINK_VERSIONS[1]
    levels: LevelRange = SUPPORTED
    level: Level = FIRST_LEVEL

    def to_text(self) -> str:
        """The value of the header."""
        return (
            f"versions={self.lowest_version}-{self.highest_version} levels={self.levels} level={self.level}"
        )


BEFORE_TERMS = LinkTerms(1, 1, BEFORE_LEVELS, FIRST_LEVEL)
"""Of an agent that says none."""


def terms_from_text(text: str | None) -> LinkTerms:
    """The other side's. Further words are for later versions. Illegible terms are taken for none."""
    match = _TERMS.match((text or "")[:MAX_TERMS_CHARACTERS])
    if match is None:
        return BEFORE_TERMS
    lowest, highest, level = int(match[1]), int(match[2]), Level(int(match[4]))
    if lowest > highest:
        return BEFORE_TERMS
    return LinkTerms(lowest, highest, range_from_text(match[3]), level)


def terms_in_head(head: bytes) -> LinkTerms:
    """The same from the head of an answer to an upgrade."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == HEADER.lower().encode():
            return terms_from_text(value.strip().decode("ascii", "replace"))
    return BEFORE_TERMS


def agree(mine: LinkTerms, theirs: LinkTerms) -> int:
    """The link version of both. Raises TermsError: none, or a level that one side does not understand."""
    version = min(mine.highest_version, theirs.highest_version)
    if version < max(mine.lowest_version, theirs.lowest_version):
        raise TermsError(
            f"no link version is common: one side speaks {mine.lowest_version} to {mine.highest_version},"
            f" the other {theirs.lowest_version} to {theirs.highest_version}; upgrade the older agent"
        )
    for levels, level in ((theirs.levels, mine.level), (mine.levels, theirs.level)):
        reason = refusal(levels, level)
        if reason is not None:
            raise TermsError(reason)
    return version
