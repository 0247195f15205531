"""Says which commands there are and which words they take; loads nothing that computes."""
