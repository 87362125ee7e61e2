"""The output of commands and their ends: tables, progress, amounts, completion, exit codes."""
