"""Sends the driver's Shoal to processes of Spark that have none, or another one."""
