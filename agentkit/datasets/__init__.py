"""Datasets: batches for a learner, out of replay or out of data that stay as they are."""

from agentkit.datasets.episode_files import EpisodeData, read_episodes, write_episodes
from agentkit.datasets.episodes import (
    Episode,
    EpisodeRecorder,
    add_episode,
    describe_actions,
    find_reward_scale,
    scale_rewards,
)
from agentkit.datasets.filling import fill_replay
from agentkit.datasets.offline import Columns, ItemStore, TransitionsDataset
from agentkit.datasets.replay import ReplayDataset
from agentkit.datasets.step_columns import split_steps
from agentkit.datasets.transition_columns import split_transitions

__all__ = [
    "Columns",
    "Episode",
    "EpisodeData",
    "EpisodeRecorder",
    "ItemStore",
    "ReplayDataset",
    "TransitionsDataset",
    "add_episode",
    "describe_actions",
    "fill_replay",
    "find_reward_scale",
    "read_episodes",
    "scale_rewards",
    "split_steps",
    "split_transitions",
    "write_episodes",
]
