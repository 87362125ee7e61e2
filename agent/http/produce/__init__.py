"""Handlers of appends: the ordinary way, and the fast path for plain requests."""
