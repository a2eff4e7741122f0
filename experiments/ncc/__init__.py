"""NCC: which runs make which table."""
