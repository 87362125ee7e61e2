"""What log lines and errors call things, how often a line may stand, and what an operator is told.

Law of this room: it imports no other. Who logs decides what has happened; here stands only how that is said.
"""
