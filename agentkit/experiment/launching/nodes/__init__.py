"""The nodes of a launched experiment: a file for each kind."""
