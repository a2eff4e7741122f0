"""Clustering, metrics and the report of an embedding."""
