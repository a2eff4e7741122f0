"""Metrics of partitions and representations."""
