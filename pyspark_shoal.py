"""Lets format("shoal") find its data source by itself: Spark imports pyspark_<format>."""

from shoal.spark import ShoalDataSource as DefaultSource

__all__ = ["DefaultSource"]
