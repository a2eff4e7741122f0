"""Runs from config to report, and inference with a finished run."""
