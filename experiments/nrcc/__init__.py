"""Measurements of NRCC's tables that are not scores of clusters."""
