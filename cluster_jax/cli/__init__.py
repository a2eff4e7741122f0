"""The command line: `images`, `train`, `embed`, `cluster` and `predict`.

Imports that load JAX or plotly are inside functions: `--help` and errors in the input stay fast.
"""
