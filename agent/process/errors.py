"""Errors that keep an agent from starting."""

from __future__ import annotations


class StartError(Exception):
    """The agent cannot start. The text is one line: what is wrong and what to do."""
