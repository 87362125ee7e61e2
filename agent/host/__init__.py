"""All replicas of this agent: when each gets its turn, and how copies, damage and lost majorities are met.

Law of this room: it finds the replica and passes on. The work of one replica stands in agent/partition, the
choice of replicas in agent/placement.
"""
