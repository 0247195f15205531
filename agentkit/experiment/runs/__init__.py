"""The run folder: its lock, its ``config.json``, its logs, and what is checked before a run is resumed from it."""
