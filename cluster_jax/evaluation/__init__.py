"""From an embedding to figures and a report."""
