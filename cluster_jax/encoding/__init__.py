"""Networks with fixed weights that turn images into features, and the embedding of whole sets."""
