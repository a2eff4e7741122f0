"""Training: step, loop, optimizers, checkpoints and logs."""
