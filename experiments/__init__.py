"""Which runs make which table; uses only what users may use."""
