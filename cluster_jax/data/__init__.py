"""Data sets, batches, augmentation."""
