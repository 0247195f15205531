"""The standard preprocessing of Atari 2600 games."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.types import Nest
from agentkit.wrappers.area import area_weights, average_rows, luminance
from agentkit.wrappers.base import EnvironmentWrapper


@final
class AtariPreprocessing(EnvironmentWrapper):
    """Prepares frames as DQN sees them: no-op starts, frame skip with a maximum, 84 x 84 grey, stacked.

    Per step: the action is repeated `num_repeats` times; the rewards are summed; the elementwise
    maximum of the last two frames (sprites flicker) is turned grey, averaged down to `size` x
    `size`, and stacked with the frames before it, oldest first. The episode's first frame fills
    the stack. An episode begins with 0 to `max_noops` no-op actions.

    Use it around an environment that neither skips frames nor sees time limits in frames of its
    own, e.g. ``envs.make("gymnasium:ALE/Pong-v5", raw=True, frameskip=1,
    repeat_action_probability=0.0, wrappers=[AtariPreprocessing])``; resumable with ``raw=False``.

    Args:
        environment: gives frames uint8 ``[H, W, 3]`` or grey ``[H, W]``.
        num_repeats: frames per action.
        num_frames: frames in the stack.
        size: height and width of the result.
        max_noops: the largest number of no-op actions at the start of an episode.
        life_loss: what the loss of a life means, in games that tell `lives` in their info:
            "ignore"; "zero_discount", the step has discount 0 and the game goes on; "terminate",
            the step is LAST with discount 0 and the next episode goes on in the same game after a
            no-op, until that is over (Stable-Baselines3's ``EpisodicLifeEnv``). In training only, as `clip_reward`: an
            experiment's evaluations play whole games for their own rewards, as with ``atari:``. Around an agent that
            observes its rewards they are clipped there, too.
        clip_reward: whether summed rewards are clipped to [-1, 1]; logs then have the episodes' own returns, too, with
            "terminate" those of lives.
        seed: seeds the number of no-ops.

    Raises:
        SpecError: the environment gives no such frames, or its actions are not discrete.
        ConfigError: a number is impossible, or the environment skips frames itself.

    Source: Mnih et al. 2015, Human-level control, Methods; Machado et al. 2018, Revisiting the ALE.
    """

    within_episode = True
    sets_discounts = True
    evaluation_settings = MappingProxyType({"life_loss": "ignore", "clip_reward": False})

    def __init__(
        self,
        environment: dm_env.Environment,
        num_repeats: int = 4,
        num_frames: int = 4,
        size: int = 84,
        max_noops: int = 30,
        life_loss: Literal["ignore", "zero_discount", "terminate"] = "ignore",
        clip_reward: bool = False,
        seed: int = 0,
    ):
        super().__init__(environment)
        frame = environment.observation_spec()
        if not specs.is_spec(frame) or frame.dtype != np.uint8 or frame.shape[2:] not in ((), (3,)):
            raise SpecError(f"AtariPreprocessing expects frames uint8 [H, W, 3] or [H, W], found {frame!r}.")
        if not isinstance(environment.action_spec(), specs.DiscreteArray):
            raise SpecError(f"Expected discrete actions, found {environment.action_spec()!r}.")
        if min(num_repeats, num_frames, size) < 1 or max_noops < 0:
            raise ConfigError("num_repeats, num_frames and size are at least 1, max_noops at least 0.")
        if num_repeats > 1 and (skip := _frames_skipped(environment)) != 1:
            raise ConfigError(
                f"atari: expected an environment that shows every frame, found one with frameskip={skip}, on top of "
                f"which each action would be repeated {num_repeats} times. Make it with frameskip=1 (--env-set "
                "frameskip=1), or take --env atari:NAME."
            )
        if life_loss not in ("ignore", "zero_discount", "terminate"):
            raise ConfigError(f"life_loss: expected ignore, zero_discount or terminate, found {life_loss!r}.")
        self._num_repeats = num_repeats
        self._num_frames = num_frames
        self._size = size
        self._max_noops = max_noops
        self._life_loss = life_loss
        self._clip_reward = clip_reward
        # Averaging over areas is linear and separable: first the rows, then the columns.
        self._rows = area_weights(frame.shape[0], size)
        self._columns = area_weights(frame.shape[1], size)
        self._stack = np.zeros((size, size, num_frames), np.uint8)
        self._lives = 0
        self._raw_return = 0.0
        self._reset_next_step = True
        self._goes_on = False
        self._rng = np.random.default_rng(seed)

    @property
    def reseed(self) -> Any:
        """Seeds the environment inside, where it has ``reseed(seed)``, and the no-ops."""
        inner = self._environment.reseed  # An AttributeError here says that there is none.

        def reseed(seed: int) -> None:
            self._goes_on = False
            self._rng = np.random.default_rng([seed, 1])
            inner(seed)

        return reseed

    @property
    def raw_return(self) -> float:
        """Returns the sum of this episode's rewards so far, before they were clipped: of a life's with "terminate"."""
        if not self._clip_reward:
            raise AttributeError("Rewards are the game's own.")  # Or those that an environment inside has clipped.
        return self._raw_return

    @property
    def goes_on(self) -> bool:
        """Returns whether the next episode goes on in this one's game, of which a life was lost."""
        return self._goes_on

    def reset(self) -> dm_env.TimeStep:
        """Starts a game and takes its no-ops; after the loss of a life, goes on in the game."""
        if self._goes_on:
            timestep = self._environment.step(np.int32(0))
            if not timestep.last():
                return self._begin(timestep)
        timestep = self._environment.reset()
        for _ in range(int(self._rng.integers(self._max_noops + 1))):
            timestep = self._environment.step(np.int32(0))
            if timestep.last():
                timestep = self._environment.reset()
        return self._begin(timestep)

    def _begin(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        self._reset_next_step = self._goes_on = False
        self._raw_return = 0.0
        self._lives = self._current_lives()
        frame = self._process(timestep.observation)
        self._stack = np.repeat(frame[..., None], self._num_frames, axis=-1)  # [size, size, k]
        return dm_env.TimeStep(dm_env.StepType.FIRST, None, None, self._stack)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action `num_repeats` times; after LAST it starts an episode instead."""
        if self._reset_next_step:
            return self.reset()
        reward, discount = 0.0, 1.0
        frames: list[np.ndarray] = []
        for _ in range(self._num_repeats):
            timestep = self._environment.step(action)
            reward += timestep.reward
            discount *= timestep.discount
            frames.append(timestep.observation)
            if timestep.last():
                break
        step_type = timestep.step_type
        if self._life_loss != "ignore":
            lives, before = self._current_lives(), self._lives
            self._lives = lives
            if lives < before:
                discount = 0.0
                # At 0 lives the game is over in a moment; some have none for some frames and go on.
                if self._life_loss == "terminate" and lives > 0:
                    self._goes_on = step_type is not dm_env.StepType.LAST
                    step_type = dm_env.StepType.LAST
        self._reset_next_step = step_type is dm_env.StepType.LAST
        if self._clip_reward:
            self._raw_return += float(reward)
            reward = min(max(reward, -1.0), 1.0)
        newest = frames[-1] if len(frames) == 1 else np.maximum(frames[-1], frames[-2])
        # A new array, since replay may hold the old one.
        self._stack = np.concatenate([self._stack[..., 1:], self._process(newest)[..., None]], axis=-1)
        return dm_env.TimeStep(step_type, np.float32(reward), np.float32(discount), self._stack)

    def _current_lives(self) -> int:
        info = getattr(self._environment, "last_info", {})
        return int(info.get("lives", 0))

    def _process(self, frame: np.ndarray) -> np.ndarray:
        grey = luminance(frame) if frame.ndim == 3 else frame.astype(np.float32)  # [H, W]
        small = average_rows(average_rows(grey, self._rows).T, self._columns).T  # [size, size]
        return np.rint(np.minimum(small, 255.0)).astype(np.uint8)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns uint8 ``[size, size, num_frames]``."""
        return specs.BoundedArray((self._size, self._size, self._num_frames), np.uint8, 0, 255, "frames")

    def reward_spec(self) -> specs.Array:
        """Returns float32 scalar."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Returns float32 scalar in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")


def _frames_skipped(environment: Any) -> Any:
    """Returns how many frames an action lasts inside a gymnasium environment, in ALE or a wrapper; 1 for all others."""
    layer = getattr(environment, "gymnasium_environment", None)
    while layer is not None:
        for name in ("frame_skip", "_frameskip", "_skip"):  # Gymnasium's preprocessing, ALE, gymnasium's maximum.
            if (skip := vars(layer).get(name, 1)) != 1:
                return skip
        layer = vars(layer).get("env")
    return 1
