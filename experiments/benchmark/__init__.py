"""Benchmarks: alternating measurements within one run. `python -m experiments.benchmark NAME`."""
