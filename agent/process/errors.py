"""Errors that keep an agent from starting."""

from __future__ import annotations


class StartError(Exception):
    """The agent cannot start. The text is one line: what is wrong and what to do."""


class RefusedError(StartError):
    """The cluster is at a level that this agent does not understand; maybe it has risen while the agent ran.
    The pool knows the agent by then, and it says that it leaves."""
