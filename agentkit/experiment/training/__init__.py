"""The loop of training in one process, and what happens in it beside learning: callbacks, signals, others' data."""
