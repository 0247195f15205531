"""Checks before and while a run goes on: does the agent fit the environment, does the environment answer."""
