"""The roles of Raft (section 5.1), and the one place that changes them. Pure."""
