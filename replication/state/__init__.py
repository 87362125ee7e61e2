"""What the roles share: the log as Raft sees it, what is to be done next, majorities. Pure."""
