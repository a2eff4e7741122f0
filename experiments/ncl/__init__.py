"""NCL: which runs make which table."""
