"""Tutorials: scripts in cells (`# %%`) to read, run, or open as a notebook."""
