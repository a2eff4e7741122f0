"""One file per method; the file name is its name in a config."""
