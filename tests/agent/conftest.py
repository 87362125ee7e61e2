"""Hypothesis without its deadline: on a shared machine it measures the neighbours, not the code."""

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
