"""Sets that others publish on: USPS and the test set of MNIST; see tables.yaml."""
