"""Small files that must survive a crash: who this agent is, what it holds, what it has promised.

Law of this room: records and how they are stored twice. The meaning of a record for a cluster is not known
here.
"""
