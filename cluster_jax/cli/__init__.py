"""The command line: `train`, `cluster` and `predict`."""
