"""Wrappers that add a regularizer to a method; each has its own section of the config."""
