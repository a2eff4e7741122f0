"""NRCC: runs and tables."""
