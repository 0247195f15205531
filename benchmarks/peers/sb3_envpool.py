"""EnvPool's batch as a vector environment of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
from stable_baselines3.common.vec_env import VecEnv
from step_clock import StepClock


class PoolVecEnv(VecEnv):
    """Steps a pool; an environment that has ended is reset at once, as Stable-Baselines3 expects.

    Args:
        name: EnvPool's name of the task.
        num_envs: how many.
        seed: of the first one.
        settings: EnvPool's.
        clock: is told of the steps.
    """

    def __init__(self, name: str, num_envs: int, seed: int, settings: dict[str, Any], clock: StepClock):
        self._pool = envpool.make_gymnasium(name, num_envs=num_envs, seed=seed, **settings)
        self._clock = clock
        self._actions: Any = None
        super().__init__(num_envs, self._pool.observation_space, self._pool.action_space)

    def reset(self) -> np.ndarray:
        """uint8 ``[N, 4, 84, 84]``."""
        self._clock.num_episodes += self.num_envs
        return self._pool.reset()[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Keeps the actions."""
        self._actions = np.asarray(actions, np.int32)

    def step_wait(self) -> Any:
        """Takes them."""
        self._clock.tick(self.num_envs)
        observation, reward, terminated, truncated, _ = self._pool.step(self._actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = np.flatnonzero(done)
        for i in ended:
            limit = bool(truncated[i] and not terminated[i])
            infos[i] = {"terminal_observation": observation[i].copy(), "TimeLimit.truncated": limit}
        if ended.size:
            self._clock.num_episodes += ended.size
            observation = observation.copy()
            observation[ended] = self._pool.reset(ended)[0]
        return observation, reward, done, infos

    def close(self) -> None:
        """Ends EnvPool's threads."""
        self._pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Environments in C++ have no attributes to read."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Environments in C++ have no attributes to set."""
        raise AttributeError(f"EnvPool's environments have no attribute {attr_name}.")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Environments in C++ have no methods to call."""
        raise AttributeError(f"EnvPool's environments have no method {method_name}.")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """None is."""
        return [False] * self.num_envs
