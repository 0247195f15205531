"""Publishes a policy with a card that says how good it is."""
