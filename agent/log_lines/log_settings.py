"""How an agent logs: the two settings, and what is refused.

Law of this file: pure. agent/config.py takes the settings up; output.py puts them into force.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.agent.log_lines.schema import LEVELS

FORMATS = ("auto", "text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """log_format `auto`: text on a terminal, JSON lines elsewhere."""

    log_format: str = "auto"
    log_level: str = "info"

    def refusal(self) -> str:
        """One line: what is wrong and what to do; empty when nothing is."""
        if self.log_format not in FORMATS:
            return f"log_format {self.log_format!r} is unknown: use one of {', '.join(FORMATS)}"
        if self.log_level not in LEVELS:
            return f"log_level {self.log_level!r} is none: use one of {', '.join(LEVELS)}"
        return ""
