"""Edits of the kind that research makes, each a few lines beside an agent's own file, of which nothing is copied."""
