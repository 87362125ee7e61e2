"""Rows of tables as requests: one by its key, a range of them, and all changes as they come."""
