"""The pool as the agent sees it: who belongs to the cluster, where they are, and how gossip begins."""
