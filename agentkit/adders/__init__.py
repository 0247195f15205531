"""Adders: from the steps of an environment to items in replay tables."""

from agentkit.adders.base import PriorityFn, Tables
from agentkit.adders.columns import ColumnsAdder, with_columns
from agentkit.adders.episode import EpisodeAdder
from agentkit.adders.hindsight import Hindsight, HindsightAdder
from agentkit.adders.n_step import NStepAdder
from agentkit.adders.null import NullAdder
from agentkit.adders.postprocessed_segments import PostprocessingWriter
from agentkit.adders.postprocessing import Postprocess, PostprocessingAdder, Trajectory
from agentkit.adders.segment import BatchedSegmentAdder, SegmentAdder, segment_layout
from agentkit.adders.sequence import SequenceAdder
from agentkit.adders.tee import TeeAdder, WithoutExtras

__all__ = [
    "BatchedSegmentAdder",
    "ColumnsAdder",
    "EpisodeAdder",
    "Hindsight",
    "HindsightAdder",
    "NStepAdder",
    "NullAdder",
    "Postprocess",
    "PostprocessingAdder",
    "PostprocessingWriter",
    "PriorityFn",
    "SegmentAdder",
    "SequenceAdder",
    "Tables",
    "TeeAdder",
    "Trajectory",
    "WithoutExtras",
    "segment_layout",
    "with_columns",
]
