"""Wrappers of methods: each has a section of the config of its own, beside `method`."""
