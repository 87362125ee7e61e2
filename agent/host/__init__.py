"""All replicas of this agent: when each gets its turn, and how copies, damage and lost majorities are met.

Law of this room: it finds the replica and passes on. What one replica does stands in agent/partition, which
replicas there should be in agent/placement.
"""
