"""Figures about partitions and representations."""
