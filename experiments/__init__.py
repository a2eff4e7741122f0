"""The runs behind the tables of the README, and the tutorials."""
