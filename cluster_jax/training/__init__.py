"""The step, the loop and what they keep."""
