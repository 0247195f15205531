"""Several agents in the compiled loop: they act together, and each policy learns from its own rows."""
