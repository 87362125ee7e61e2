"""Names in log lines and errors, how often a line may stand, and the events that an operator is told.

Law of this room: it imports no other. Callers decide what has happened; only the words stand here."""
