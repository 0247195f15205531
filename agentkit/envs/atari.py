"""Atari 2600 games by the standard protocol, in the Arcade Learning Environment."""

from __future__ import annotations

from typing import Any, Literal

from agentkit.envs import gymnasium, gymnasium_loading
from agentkit.envs.base import check_within
from agentkit.errors import ConfigError
from agentkit.wrappers.atari import AtariPreprocessing


def make(
    name: str,
    seed: int = 0,
    *,
    evaluation: bool = False,
    sticky_action_prob: float = 0.25,
    life_loss: Literal["ignore", "zero_discount", "terminate"] = "ignore",
    clip_reward: bool = True,
    max_frames: int = 108_000,
    max_noops: int = 0,
    **kwargs: Any,
) -> AtariPreprocessing:
    """Makes an Atari game by the protocol of Machado et al. (2018, 1709.06009), as Dopamine does.

    An action lasts 4 frames; the maximum of the last two is turned grey and 84 x 84, and 4 of these are stacked, uint8
    ``[84, 84, 4]``. Sticky actions make the game random: there are no no-op starts. The game's own set of actions is
    offered, a lost life is no end, and an episode is truncated after 108,000 frames, half an hour of play. Rewards are
    clipped to [-1, 1] in training, and never in evaluation. The emulator is ALE and not EnvPool, because its
    episodes can be repeated: a resumed run equals an uninterrupted one to the bit.

    Args:
        name: such as ``Breakout``, with a version or without one, for the newest.
        seed: seeds the game, sticky actions included.
        evaluation: whether the episodes are to be judged by: then neither rewards nor lives are touched.
        sticky_action_prob: with this probability a frame repeats the action of the frame before.
        life_loss: what the loss of a life means in training, see `AtariPreprocessing`: "terminate" is
            Stable-Baselines3's and CleanRL's.
        clip_reward: whether rewards are clipped in training.
        max_frames: frames of an episode, those that are skipped included.
        max_noops: the largest number of no-op actions at the start of an episode.
        **kwargs: others of ALE, such as ``full_action_space=True`` for all 18 actions, ``render_mode="rgb_array"``,
            ``mode=1`` or ``difficulty=1``.

    Raises:
        UnknownNameError: ALE has no such game; proposes the nearest name.
        MissingExtraError: ale-py is not installed.
        ConfigError: for a setting that the protocol has, under ALE's or gymnasium's name, or `sticky_action_prob` is no
            probability.
    """
    check_within("sticky_action_prob", sticky_action_prob, 0, 1)
    gymnasium_loading.register_atari()
    ours = {
        "frameskip": "nothing: an action lasts 4 frames",
        "repeat_action_probability": "sticky_action_prob",
        "max_num_frames_per_episode": "max_frames",
        "max_episode_steps": "max_frames (4 to an action)",
    }
    for key in ours.keys() & kwargs.keys():
        whose = "gymnasium's" if key == "max_episode_steps" else "ALE's"
        raise ConfigError(f"atari:{name} has {ours[key]} for {whose} {key}.")
    found = gymnasium_loading.find("ale_py", name, "Atari game", "ALE/")
    game = gymnasium_loading.load(
        found,
        frameskip=1,
        repeat_action_probability=sticky_action_prob,
        max_num_frames_per_episode=max_frames,
        **{"full_action_space": False, **kwargs},
    )
    return AtariPreprocessing(
        gymnasium.GymnasiumEnvironment(game, seed),
        max_noops=max_noops,
        life_loss="ignore" if evaluation else life_loss,
        clip_reward=clip_reward and not evaluation,
        seed=seed,
    )
