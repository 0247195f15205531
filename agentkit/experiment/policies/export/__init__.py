"""Writes policies for other worlds: one file for each format."""
