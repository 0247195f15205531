"""MiniGrid's tasks, with what the agent sees as indicators. The one file that imports minigrid."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np

from agentkit.envs import gymnasium, gymnasium_loading
from agentkit.errors import ConfigError, SpecError, missing_extra

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of pygame.
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
except ImportError as error:
    raise missing_extra("minigrid", "minigrid") from error

_SIZES = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX))
_MAX_MISSIONS = 10_000


def make(name: str, seed: int = 0, **kwargs: Any) -> gymnasium.GymnasiumEnvironment:
    """Makes a task such as ``DoorKey-5x5`` of MiniGrid (Chevalier-Boisvert et al. 2023, 2306.13831).

    Observations are a dictionary: ``image``, bool ``[7, 7, 20]``, has indicators of each cell's object, colour and
    state, whose numbers are no sizes; ``direction`` is a choice of 4. Where the mission differs between episodes,
    ``mission`` has a choice for each word that does ("go to the *red* *ball*").

    Args:
        name: what gymnasium calls ``MiniGrid-NAME-v0``, with a version or without one, for the newest.
        seed: seeds the task.
        **kwargs: the task's own, such as ``max_steps=200``, its time limit, by which its reward is reckoned, too.

    Raises:
        UnknownNameError: MiniGrid has no such task; proposes the nearest name.
        SpecError: the missions are free text (BabyAI), for which agentkit has no network.
        ConfigError: `max_episode_steps` is longer than the task's own limit, which would hold all the same.
    """
    if name.startswith("BabyAI"):
        raise SpecError(
            f"minigrid:{name}: its missions are sentences, and no network here reads text. Take a task of "
            "MiniGrid's own, such as minigrid:GoToDoor-5x5, whose missions are a few choices."
        )
    environment = gymnasium_loading.load(
        gymnasium_loading.find("minigrid", name, "MiniGrid task", "MiniGrid-"), **kwargs
    )
    asked, own = kwargs.get("max_episode_steps"), environment.unwrapped.max_steps  # type: ignore[attr-defined]
    if asked is not None and not 0 < asked <= own:
        raise ConfigError(
            f"max_episode_steps: expected at most {own}, the limit that minigrid:{name} has itself, found {asked}. "
            "Give max_steps for longer episodes; the reward is reckoned by it, too."
        )
    spaces: Any = gymnasium_loading.spaces
    seen: Any = environment.observation_space
    shape = (*seen["image"].shape[:2], sum(_SIZES))
    space: dict[str, Any] = {"image": spaces.Box(0, 1, shape, bool), "direction": spaces.Discrete(4)}
    missions = _choices_of(seen["mission"], name)
    if missions:  # One mission for all episodes says nothing.
        space["mission"] = spaces.MultiDiscrete([len(words) for words in seen["mission"].ordered_placeholders])

    def encode(observation: dict[str, Any]) -> dict[str, Any]:
        encoded = {"image": indicators(observation["image"]), "direction": observation["direction"]}
        return encoded | {"mission": missions[observation["mission"]]} if missions else encoded

    changed = gymnasium.transform_observations(environment, encode, spaces.Dict(space))
    return gymnasium.GymnasiumEnvironment(changed, seed)


def indicators(image: np.ndarray) -> np.ndarray:
    """Returns bool ``[H, W, 20]``: indicators of the object, colour and state in each cell of uint8 ``[H, W, 3]``."""
    offsets = np.array([0, _SIZES[0], _SIZES[0] + _SIZES[1]])
    planes = np.zeros((*image.shape[:2], sum(_SIZES)), bool)
    np.put_along_axis(planes, image + offsets, True, axis=-1)
    return planes


def _choices_of(missions: Any, name: str) -> dict[str, np.ndarray]:
    """Returns the choices that make each mission of a task; nothing if there is one mission only."""
    choices = missions.ordered_placeholders
    if not choices:
        return {}
    number = math.prod(map(len, choices))
    if number > _MAX_MISSIONS:
        raise SpecError(f"minigrid:{name} has {number:,} missions; expected at most {_MAX_MISSIONS:,}.")
    every = itertools.product(*(range(len(words)) for words in choices))
    return {
        missions.mission_func(*(words[i] for words, i in zip(choices, chosen, strict=True))): np.array(chosen)
        for chosen in every
    }
