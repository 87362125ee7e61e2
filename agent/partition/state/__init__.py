"""The state that one log gives: its numbers, its producers, its time, and the head that may be dropped.

Law of this room: pure. A log's entries come in, in order; no clock, no file, no future.
"""
