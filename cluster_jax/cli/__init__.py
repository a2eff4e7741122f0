"""The subcommands of `cluster-jax`, one module each.

Imports that load JAX are inside functions: `--help` and errors in the input stay fast.
"""
