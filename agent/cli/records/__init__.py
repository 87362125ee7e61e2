"""Commands that carry records: `shoal produce`, `shoal consume`, `shoal lag`, exports."""
