"""See the code map in ARCHITECTURE.md."""
