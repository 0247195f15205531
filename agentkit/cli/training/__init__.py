"""Runs the commands that train: a file for each."""
