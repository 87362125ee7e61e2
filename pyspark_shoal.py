"""Lets format("shoal") find the data source where Shoal is installed."""
