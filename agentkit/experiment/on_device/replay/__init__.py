"""Experience in the device's memory: rings of items, drawn uniformly or by priority."""
