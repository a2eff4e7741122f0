"""Encoders: the forward passes of methods; each method adds its objective."""
