"""Writes policies for other worlds, and what goes with them: one file for each format."""
