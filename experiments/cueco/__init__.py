"""CueCo: which runs make which table."""
