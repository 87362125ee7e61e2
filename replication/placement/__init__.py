"""Where the replicas of many groups go, and the steps that bring them there. Pure."""
