"""The number of clusters without k: generated and real sets, peers, and tables."""
