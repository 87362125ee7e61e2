"""Consumer groups at work: what a replica does for the consumers of its partition while it leads.

The pure parts decide (agent/groups); here are their entries, their feeds and those who wait for them.
"""
