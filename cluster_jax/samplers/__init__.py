"""Samplers of the third view: (key, image, energy) -> (view, info)."""
