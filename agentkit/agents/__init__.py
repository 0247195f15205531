"""Agents: one file per algorithm. `registry` lists them."""
