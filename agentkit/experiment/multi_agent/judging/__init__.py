"""Judges the policies of a run of several agents: evaluations, films and tournaments."""
