"""What front doors may ask of an agent, behind agent/interface.py: records, topics, cluster, metrics."""
