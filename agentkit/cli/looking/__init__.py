"""Runs the commands that look at what is there, and pass it on: a file for each."""
