"""How a method of two views encodes them; a method adds its objective."""
