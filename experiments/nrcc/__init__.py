"""NRCC: which runs make which table."""
