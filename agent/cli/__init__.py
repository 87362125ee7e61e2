"""The command `shoal`: one file for each group of commands, and rooms for what they share."""
