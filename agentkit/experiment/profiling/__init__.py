"""Measures where the time of a run goes."""
