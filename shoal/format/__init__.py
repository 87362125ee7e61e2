"""What agents, clients and Spark agree on: stamped batches, records, hashes, ranges. It knows no agent."""
