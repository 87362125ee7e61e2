"""What log lines and errors call things, how often a line may stand, and what an operator is told.

Law of this room: it imports no other. Callers decide what has happened; only the words stand here."""
