"""DataFrames and streams into topics."""
