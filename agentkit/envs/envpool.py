"""EnvPool: a batch of environments stepped in C++ threads. The one file that imports envpool.

It is driven by its gymnasium interface: its dm_env interface gives discount 0 at time limits, too.
"""

from __future__ import annotations

import abc
import difflib
import warnings
from collections.abc import Mapping
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.envs.base import NO_LIMIT, check_max_episode_steps
from agentkit.envs.batched import Batch, spec_with_floats
from agentkit.errors import ConfigError, missing_extra, unknown_name
from agentkit.types import Array, Nest
from agentkit.wrappers.base import EnvironmentWrapper

try:
    import envpool
except ImportError as error:
    raise missing_extra("envpool", "envpool") from error


def make(
    name: str, seed: int = 0, num_envs: int = 1, *, ready: int | None = None, evaluation: bool = False, **kwargs: Any
) -> EnvPoolEnvironment | ReadySlots:
    """Makes a batch of `num_envs` EnvPool environments, e.g. of ``HalfCheetah-v4``.

    Args:
        name: EnvPool's name of the task.
        seed: seeds the batch; environment i is seeded with `seed` + i by EnvPool.
        num_envs: how many.
        ready: M, for `ReadySlots` of the M environments that are ready first; None for all in step.
        evaluation: whether the episodes are to be judged by: then Atari's rewards are not clipped, and no life lost is
            an end, whatever the settings say of training.
        **kwargs: EnvPool's settings: `num_threads`, `max_episode_steps` (-1 for no limit), `frame_skip`, ...

    Raises:
        UnknownNameError: if EnvPool has no such task.
        ConfigError: for a setting that the task lacks, a batch size in other words than `ready`, or several players; or
            `max_episode_steps` is no number of steps.
    """
    tasks = envpool.list_all_envs()
    if name not in tasks:
        raise unknown_name("EnvPool task", name, difflib.get_close_matches(name, tasks, n=5, cutoff=0.4))
    if kwargs.get("batch_size", num_envs) != num_envs:
        raise ConfigError(
            f"batch_size: expected num_envs={num_envs}, found {kwargs['batch_size']}. To act for whoever is ready "
            f"first, leave batch_size out and give --ready {kwargs['batch_size']} (ready={kwargs['batch_size']})."
        )
    if kwargs.get("zero_discount_on_life_loss"):  # No error: older runs have it, which go on as they began.
        warnings.warn(
            "zero_discount_on_life_loss=True does nothing: EnvPool tells no discounts where it tells truncated "
            "episodes apart. Take episodic_life=True, or atari:NAME with life_loss=zero_discount.",
            stacklevel=2,
        )
    if evaluation:
        kwargs |= {name: False for name in ("reward_clip", "episodic_life") if name in kwargs}
    if ready is not None:
        kwargs["batch_size"] = ready
    check_max_episode_steps(kwargs.get("max_episode_steps"))
    if kwargs.get("max_episode_steps") == -1:
        kwargs["max_episode_steps"] = NO_LIMIT  # EnvPool would end every episode at its first step.
    try:
        # EnvPool's dm_env interface reports discount 0 for episodes that were only truncated (1.2.5),
        # so the pool is driven through the one that tells the two apart.
        pool = envpool.make_gymnasium(name, num_envs=num_envs, seed=seed, **kwargs)
    except TypeError as error:
        known = ", ".join(sorted(envpool.make_spec(name).config._fields))
        raise ConfigError(f"EnvPool refused the settings {sorted(kwargs)}: {error}. Known: {known}") from error
    return EnvPoolEnvironment(pool) if ready is None else ReadySlots(pool)


class _Pool(Batch):
    """Holds an EnvPool pool that has begun its first episodes, with the specs of one of its environments."""

    resumable = False

    def __init__(self, pool: Any):
        _check_one_player(pool.config)
        self._pool = pool
        with warnings.catch_warnings():  # Its gymnasium spaces, made on the first reset, warn of casts.
            warnings.simplefilter("ignore")
            self._first: Any = self._begin()  # Served by the first `reset`.
        observations = _observation_spec(pool.observation_space, self._first[0])
        self._spec = spec_with_floats(observations, pool.spec.action_spec())

    @abc.abstractmethod
    def _begin(self) -> Any:
        """Begins the first episodes; returns what the pool gave, the observations first."""

    def close(self) -> None:
        """Ends EnvPool's threads."""
        self._pool.close()


@final
class EnvPoolEnvironment(_Pool):
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

    def __init__(self, pool: Any):
        super().__init__(pool)
        self._num_envs = int(pool.config["num_envs"])
        self._last = np.zeros(self._num_envs, bool)

    def _begin(self) -> Any:
        return self._pool.reset()

    @property
    def num_envs(self) -> int:
        """Returns N, the number of environments."""
        return self._num_envs

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode in every environment."""
        (observation, _), self._first = (self._pool.reset() if self._first is None else self._first), None
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
        actions = np.ascontiguousarray(actions, self._spec.actions.dtype)
        observation, reward, terminated, truncated, _ = self._pool.step(actions)
        timestep = _timestep(self._last, observation, reward, terminated, truncated)
        self._last = terminated | truncated
        return timestep


@final
class ReadySlots(_Pool):
    """Shows an asynchronous EnvPool pool as a batch of M slots, for wrappers; `ReadyEnvPool` goes around them.

    `reset` waits for the M environments that are ready first, and `step` sends them their actions without waiting. So a
    wrapper that keeps nothing from one step to the next serves both, whichever environments are in the slots.

    Attributes:
        numbers: int64 ``[M]``, ascending: the environments in the slots.
        pool_size: N, how many environments there are.
        earned: float64 ``[N]``, the sum of each one's rewards so far, of all its episodes.

    Args:
        pool: what ``envpool.make_gymnasium`` gives for a ``batch_size`` M below its ``num_envs``.
    """

    def __init__(self, pool: Any):
        super().__init__(pool)
        self.pool_size, self._num_slots = int(pool.config["num_envs"]), int(pool.config["batch_size"])
        self._last = np.ones(self.pool_size, bool)  # Each environment's next time step is FIRST.
        self._is_working = np.ones(self.pool_size, bool)
        self.numbers = np.arange(self._num_slots)
        self.earned = np.zeros(self.pool_size)
        self._newest: dm_env.TimeStep | None = None

    def _begin(self) -> Any:
        self._pool.async_reset()
        return self._pool.recv()

    @property
    def num_envs(self) -> int:
        """Returns M, the number of slots."""
        return self._num_slots

    def reset(self) -> dm_env.TimeStep:
        """Waits until M environments are ready; fills the slots with them.

        Raises:
            ConfigError: fewer than M environments work, so that nobody would ever answer.
        """
        if np.count_nonzero(self._is_working) < self._num_slots:
            raise ConfigError(
                f"recv: expected at least {self._num_slots} environments at work, found "
                f"{np.count_nonzero(self._is_working)}. Send those that were received their actions first."
            )
        found, self._first = (self._pool.recv() if self._first is None else self._first), None
        order = np.argsort(found[4]["env_id"])
        observation, reward, terminated, truncated = tree.map_structure(lambda x: x[order], tuple(found[:4]))
        self.numbers = numbers = found[4]["env_id"][order].astype(np.int64)
        self._newest = _timestep(self._last[numbers], observation, reward, terminated, truncated)
        self.earned[numbers] += self._newest.reward
        self._last[numbers], self._is_working[numbers] = terminated | truncated, False
        return self._newest

    def step(self, actions: np.ndarray) -> dm_env.TimeStep:
        """Sends actions ``[M, ...]`` to the environments in the slots; returns the time step from before them."""
        if self._newest is None:
            raise ConfigError("send: expected environments that were received before. Call recv first.")
        self._pool.send(np.ascontiguousarray(actions, self._spec.actions.dtype), self.numbers.astype(np.int32))
        self._is_working[self.numbers] = True
        return self._newest


@final
class ReadyEnvPool(EnvironmentWrapper):
    """Serves those M of N EnvPool environments that are ready first, as `WorkerBatchedEnvironment` does.

    Which are ready depends on the machine, so that nothing repeats.

    Args:
        slots: `ReadySlots`, with wrappers around them or without.
    """

    works_on_batches = True

    def __init__(self, slots: Any):
        super().__init__(slots)
        self.num_envs: int = slots.pool_size
        self.num_ready: int = slots.num_envs
        self._started = False

    def async_reset(self) -> None:
        """Starts an episode in every environment; `recv` gives the first time steps.

        Raises:
            ConfigError: they are at work already.
        """
        if self._started:
            raise ConfigError("async_reset: expected a pool that was not started, found one at work. Make it anew.")
        self._started = True

    def recv(self) -> tuple[np.ndarray, dm_env.TimeStep]:
        """Waits until M environments are ready; returns their numbers int64 ``[M]``, ascending, and time steps ``[M]``.

        `send` must follow for each.
        """
        timestep = self.environment.reset()
        return self.environment.numbers, timestep

    def send(self, actions: Nest, numbers: np.ndarray) -> None:
        """Lets the environments that `recv` gave take actions, leaves ``[M, ...]``; LAST ones start an episode instead.

        Raises:
            ConfigError: `numbers` are others than those of the latest `recv`.
        """
        if not np.array_equal(numbers, self.environment.numbers):
            raise ConfigError(
                f"send: expected actions for {self.environment.numbers}, found {numbers}. Answer each recv."
            )
        self.environment.step(actions)

    @property
    def raw_return(self) -> np.ndarray | None:
        """Returns sums of the rewards before wrappers changed them, ``[N]``; None where none does."""
        # A wrapper's own sums are of slots, in which environments take turns.
        return None if getattr(self.environment, "raw_return", None) is None else self.environment.earned

    def reset(self) -> dm_env.TimeStep:
        """Refuses: the environments are not in step."""
        raise ConfigError("reset: expected a batch in step, found one made with ready=M. Use async_reset and recv.")

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Refuses: the environments are not in step."""
        raise ConfigError("step: expected a batch in step, found one made with ready=M. Use send and recv.")


def _timestep(
    was_last: Array, observation: Nest, reward: Array, terminated: Array, truncated: Array
) -> dm_env.TimeStep:
    """Returns the time steps of a batch; where `was_last`, EnvPool has just begun an episode."""
    step_type = np.where(was_last, 0, np.where(terminated | truncated, 2, 1)).astype(np.int32)
    reward = np.where(was_last, np.float32(0), reward)  # Some tasks repeat the last one.
    return dm_env.TimeStep(step_type, reward, (~terminated).astype(np.float32), observation)


def _check_one_player(config: Mapping[str, Any]) -> None:
    if config.get("max_num_players", 1) != 1:
        raise ConfigError(f"Expected a task of one player, found {config['max_num_players']}. Choose another task.")


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
