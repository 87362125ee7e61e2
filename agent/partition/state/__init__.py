"""What one log says: its numbers, its producers, its time, and what may be dropped.

Law of this room: pure. A log's entries come in, in order; no clock, no file, no future.
"""
