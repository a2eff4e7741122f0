"""Benchmarks: ratios taken in one run, alternating. `python -m experiments.benchmark NAME`."""
