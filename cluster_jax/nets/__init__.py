"""Networks; the only package that imports Flax."""
