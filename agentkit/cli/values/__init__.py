"""Turns words into what they stand for: environments, wrappers, callbacks, settings, files of options."""
