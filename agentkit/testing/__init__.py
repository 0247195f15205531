"""Contracts to inherit in tests of your own agents, adders, environments and replays. They need pytest."""
