"""Handlers of what is no record: topics, members, keys, trims, events, the agent itself."""
