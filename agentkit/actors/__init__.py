"""Actors: policies (pure) and the objects that make them act and record."""

from agentkit.actors.actor import BatchedPolicyActor, PolicyActor
from agentkit.actors.policy import Policy, feed_forward

__all__ = ["BatchedPolicyActor", "Policy", "PolicyActor", "feed_forward"]
