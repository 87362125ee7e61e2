"""Commands that look for what is wrong: `shoal status`, `shoal doctor`, `shoal log`."""
