"""A run from its config to its report, and inference with what it leaves."""
