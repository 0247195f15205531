"""Adders: from the steps of an environment to items in replay tables."""

from agentkit.adders.base import PriorityFn, Tables
from agentkit.adders.episode import EpisodeAdder
from agentkit.adders.n_step import NStepAdder
from agentkit.adders.sequence import SequenceAdder

__all__ = ["EpisodeAdder", "NStepAdder", "PriorityFn", "SequenceAdder", "Tables"]
