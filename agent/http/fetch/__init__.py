"""Handlers of reads: one partition or all of a topic, once or as a stream, and the ends of logs."""
