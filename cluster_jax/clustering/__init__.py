"""Clustering of embeddings on the host."""
