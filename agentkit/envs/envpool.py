"""EnvPool: a batch of environments stepped in C++ threads. The one file that imports envpool."""

from __future__ import annotations

import difflib
import warnings
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError, missing_extra, unknown_name
from agentkit.types import Nest

try:
    import envpool
except ImportError as error:
    raise missing_extra("envpool", "envpool") from error


def make(name: str, seed: int = 0, num_envs: int = 1, **kwargs: Any) -> EnvPoolEnvironment:
    """Makes a batch of `num_envs` EnvPool environments, e.g. of ``HalfCheetah-v4``.

    Args:
        name: EnvPool's name of the task.
        seed: seeds the batch; environment i is seeded with `seed` + i by EnvPool.
        num_envs: how many.
        **kwargs: EnvPool's settings: `num_threads`, `max_episode_steps`, `frame_skip`, ...

    Raises:
        UnknownNameError: if EnvPool has no such task.
        ConfigError: for a setting that the task lacks, a batch size of its own, or several players.
    """
    tasks = envpool.list_all_envs()
    if name not in tasks:
        raise unknown_name("EnvPool task", name, difflib.get_close_matches(name, tasks, n=5, cutoff=0.4))
    if kwargs.get("batch_size", num_envs) != num_envs:
        raise ConfigError(
            f"batch_size: expected num_envs={num_envs}, found {kwargs['batch_size']}. Asynchronous stepping "
            "(a batch smaller than the pool) is not supported; leave batch_size away."
        )
    try:
        # EnvPool's dm_env interface reports discount 0 for episodes that were only truncated (1.2.5),
        # so the pool is driven through the one that tells the two apart.
        pool = envpool.make_gymnasium(name, num_envs=num_envs, seed=seed, **kwargs)
    except TypeError as error:
        known = ", ".join(sorted(envpool.make_spec(name).config._fields))
        raise ConfigError(f"EnvPool refused the settings {sorted(kwargs)}: {error}. Known: {known}") from error
    return EnvPoolEnvironment(pool)


@final
class EnvPoolEnvironment(dm_env.Environment):
    """Adapts an EnvPool pool to agentkit's convention for batches.

    The convention is that of `agentkit.envs.batched.BatchedEnvironment`. LAST has discount 0 for a
    terminated and 1 for a truncated element. An episode that terminates at the very step of its
    time limit counts as truncated: EnvPool does not tell that case apart.

    EnvPool can neither be reseeded nor saved: after a restart it begins new episodes, and a resumed
    run is not equal bit for bit to an uninterrupted one (`resumable` is False). Two pools with the
    same settings and seed give the same episodes.

    Args:
        pool: what ``envpool.make_gymnasium`` gives.
    """

    resumable = False

    def __init__(self, pool: Any):
        self._pool = pool
        config = pool.config
        self._num_envs = int(config["num_envs"])
        if config.get("max_num_players", 1) != 1:
            raise ConfigError(f"Expected a task of one player, found {config['max_num_players']}. Choose another task.")
        with warnings.catch_warnings():  # Its gymnasium spaces, made on the first reset, warn of casts.
            warnings.simplefilter("ignore")
            observation, _ = pool.reset()
        self._first: Nest | None = observation
        self._last = np.zeros(self._num_envs, bool)
        self._observation_spec = _observation_spec(pool.observation_space, observation)
        self._action_spec = pool.spec.action_spec()

    @property
    def num_envs(self) -> int:
        """Returns N, the number of environments."""
        return self._num_envs

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode in every environment."""
        observation, self._first = self._first, None
        if observation is None:  # The constructor's own reset serves the first one.
            observation, _ = self._pool.reset()
        self._last = np.zeros(self._num_envs, bool)
        return dm_env.TimeStep(
            step_type=np.zeros(self._num_envs, np.int32),
            reward=np.zeros(self._num_envs, np.float32),
            discount=np.ones(self._num_envs, np.float32),
            observation=observation,
        )

    def step(self, actions: np.ndarray) -> dm_env.TimeStep:
        """Takes actions ``[N, ...]``; elements that were LAST start an episode instead."""
        if self._first is not None:
            return self.reset()
        actions = np.ascontiguousarray(actions, self._action_spec.dtype)
        observation, reward, terminated, truncated, _ = self._pool.step(actions)
        last = terminated | truncated
        # Where an element was LAST, EnvPool has reset it; some tasks then repeat the last reward.
        step_type = np.where(self._last, 0, np.where(last, 2, 1)).astype(np.int32)
        reward = np.where(self._last, np.float32(0), reward)
        self._last = last
        return dm_env.TimeStep(step_type, reward, (~terminated).astype(np.float32), observation)

    def observation_spec(self) -> Nest:
        """Returns the spec of one environment's observation."""
        return self._observation_spec

    def action_spec(self) -> Nest:
        """Returns the spec of one environment's action."""
        return self._action_spec

    def reward_spec(self) -> specs.Array:
        """Returns float32 scalar."""
        return specs.Array((), np.float32, name="reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Returns float32 scalar in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, name="discount")

    def close(self) -> None:
        """Ends EnvPool's threads."""
        self._pool.close()


def _observation_spec(space: Any, observation: Nest) -> Nest:
    """Specs of the observations that EnvPool gave, bounds included where there is a single array.

    Its dm_env specs are not used: with numpy 1.26 they cannot be made for MuJoCo tasks (1.2.5), and
    the bounds of dict observations are made up (the smallest positive and the largest float).
    """
    if isinstance(observation, np.ndarray):
        shape, dtype = observation.shape[1:], observation.dtype
        if hasattr(space, "n"):
            return specs.DiscreteArray(int(space.n), dtype=dtype, name="observation")
        if np.isfinite(space.low).any() or np.isfinite(space.high).any():
            return specs.BoundedArray(shape, dtype, space.low, space.high, "observation")
        return specs.Array(shape, dtype, "observation")
    return tree.map_structure_with_path(
        lambda path, leaf: specs.Array(leaf.shape[1:], leaf.dtype, ".".join(map(str, path))), observation
    )
