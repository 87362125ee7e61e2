"""The memory of a group's leader: who waits, who holds what until when, and in which order messages go.

Law of this room: pure. Nothing here is replicated; a new leader makes it anew from the group's own state.
"""
