"""Datasets: replay to batches for a learner."""

from agentkit.datasets.replay import FixedDataset, Prefetch, ReplayDataset, to_device

__all__ = ["FixedDataset", "Prefetch", "ReplayDataset", "to_device"]
