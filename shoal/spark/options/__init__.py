"""Options of queries and writes, read and checked before any agent is asked."""
