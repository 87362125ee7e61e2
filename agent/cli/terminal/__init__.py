"""What commands print and how they end: tables, progress, amounts, completion, exit codes."""
