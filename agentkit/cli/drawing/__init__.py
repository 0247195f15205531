"""Draws curves, tables and pictures of runs for the commands `plot` and `compare`."""
