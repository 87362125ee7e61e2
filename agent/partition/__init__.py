"""One replica at work: opening, appending, reading, sending, applying and trimming.

Law of this room: one replica knows itself, its log and its peers' addresses. Others of this agent, and where
replicas belong, are unknown here.
"""
