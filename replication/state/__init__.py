"""Shared by the roles: the log as Raft sees it, the next work of the driver, majorities. Pure."""
