"""Consumer groups: what is replicated of them, and what only a partition's leader knows.

Law of this room: pure. Requests, entries and times come in, operations and decisions go out; no clock, no
chance, no file, no future.
"""
