"""May this agent found a cluster, join one, or has it to wait.

Law of this room: rules.py decides and is pure; the rest asks, waits and carries out. It knows the member list
and the catalog, and nothing of partitions.
"""
