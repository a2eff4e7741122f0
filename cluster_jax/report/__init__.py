"""The report and the tables of a run, what a person decides about it, and its words for them."""
