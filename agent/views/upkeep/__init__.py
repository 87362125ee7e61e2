"""The sorted views of this agent's replicas: opened with them, kept in order beside them, and lent to peers.

Law of this room: when something is done with a view, and for whom. Rows and files belong to agent/views.
"""
