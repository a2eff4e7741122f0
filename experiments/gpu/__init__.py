"""What to measure and train when a GPU is lent for half an hour; see `__main__`."""
