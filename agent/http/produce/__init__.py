"""Handlers of appends: the ordinary way, and the short one for requests like thousands before them."""
