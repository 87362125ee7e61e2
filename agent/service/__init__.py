"""Use cases for front doors, behind agent/interface.py: records, topics, cluster, metrics."""
