"""MinAtar's five games (Young & Tian 2019, 1903.03176). The one file that imports minatar."""

from __future__ import annotations

import warnings
from typing import Any, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.envs.base import check_within
from agentkit.errors import missing_extra, unknown_name

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the plotting packages that it imports.
        import minatar
except ImportError as error:
    raise missing_extra("minatar", "minatar") from error

_GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
_PIXELS_OF_A_CELL = 16


def make(
    name: str,
    seed: int = 0,
    *,
    sticky_action_prob: float = 0.1,
    difficulty_ramping: bool = True,
    minimal_actions: bool = False,
) -> MinAtarEnvironment:
    """Makes a game by the protocol of MinAtar's paper.

    Args:
        name: such as ``Breakout`` or ``SpaceInvaders``.
        seed: seeds the game and its sticky actions.
        sticky_action_prob: with this probability the action before is repeated instead.
        difficulty_ramping: whether the game gets faster, as the paper's does.
        minimal_actions: whether only the actions that do something are offered; the paper has 6 in every game.

    Raises:
        UnknownNameError: there is no such game; proposes the nearest name.
        ConfigError: `sticky_action_prob` is no probability.
    """
    check_within("sticky_action_prob", sticky_action_prob, 0, 1)
    game = _GAMES.get(name, name)
    if game not in _GAMES.values():
        raise unknown_name("MinAtar game", name, _GAMES)
    settings = {"sticky_action_prob": sticky_action_prob, "difficulty_ramping": difficulty_ramping}
    return MinAtarEnvironment(minatar.Environment(game, **settings), seed, minimal_actions=minimal_actions)


@final
class MinAtarEnvironment(dm_env.Environment):
    """Gives a MinAtar game dm_env's interface: observations bool ``[10, 10, C]``.

    There is no time limit but Freeway's own of 2,501 steps, which MinAtar calls a termination (discount 0).

    Args:
        game: a `minatar.Environment`.
        seed: seeds it.
        minimal_actions: see `make`.
    """

    def __init__(self, game: Any, seed: int = 0, *, minimal_actions: bool = False):
        self._game = game
        self._actions = game.minimal_action_set() if minimal_actions else list(range(game.num_actions()))
        self._reset_next_step = True
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._game.seed(seed)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        self._reset_next_step = False
        self._game.last_action = 0  # The game would repeat one of the episode before.
        self._game.reset()
        return dm_env.TimeStep(dm_env.StepType.FIRST, None, None, self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead and ignores the action."""
        if self._reset_next_step:
            return self.reset()
        reward, terminated = self._game.act(self._actions[int(action)])
        self._reset_next_step = terminated
        step_type = dm_env.StepType.LAST if terminated else dm_env.StepType.MID
        return dm_env.TimeStep(step_type, float(reward), 0.0 if terminated else 1.0, self._observe())

    def _observe(self) -> np.ndarray:
        return np.array(self._game.state(), bool)

    def render(self) -> np.ndarray:
        """Returns an image, uint8 ``[160, 160, 3]``: each kind of object in a shade of its own."""
        state = self._observe()
        shade = np.max(state * np.arange(1, state.shape[-1] + 1), axis=-1) * 255 // state.shape[-1]  # [10, 10]
        large = np.kron(shade, np.ones((_PIXELS_OF_A_CELL, _PIXELS_OF_A_CELL), np.int64))
        return np.repeat(large[..., None], 3, axis=-1).astype(np.uint8)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns bool ``[10, 10, C]``: which kinds of objects are in which cell."""
        return specs.BoundedArray(tuple(self._game.state_shape()), bool, False, True, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a DiscreteArray of 6 actions, or of fewer with `minimal_actions`."""
        return specs.DiscreteArray(len(self._actions), dtype=np.int32, name="action")

    def reward_spec(self) -> specs.Array:
        """Returns float64 scalar."""
        return specs.Array((), np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Returns float64 scalar in [0, 1]."""
        return specs.BoundedArray((), np.float64, 0.0, 1.0, "discount")
