"""Topics and tables into Spark."""
