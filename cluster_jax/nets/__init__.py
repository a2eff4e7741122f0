"""Networks; the only folder that names Flax."""
