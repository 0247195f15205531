"""Evaluations in a compiled loop: the episodes of one are played side by side."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.actors import CompiledPolicy
from agentkit.actors.policy import Policy
from agentkit.core import VariableSource
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.dm_environment import attributes_of
from agentkit.errors import tell_not_finite
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.evaluate import seed_of_evaluation, summarise
from agentkit.experiment.on_device.acting import Acting, all_finite, fill_pool, start, take_step
from agentkit.learning.compiled import compile_quickly
from agentkit.types import LAST, Array, Params
from agentkit.variables import VariableClient

_STEPS = 250
"""Of each episode between two questions whether to stop."""


class Playing(NamedTuple):
    """Holds an evaluation that is being played, in E environments; each counts its first episode alone.

    Attributes:
        acting: of policy and environments.
        returns: so far, float32 ``[E]``.
        lengths: likewise, int32 ``[E]``.
        is_over: whether it has ended, bool ``[E]``.
        is_cut: whether that was for its length, bool ``[E]``.
        is_finite: whether all its rewards and observations were, bool ``[E]``.
    """

    acting: Acting
    returns: Array
    lengths: Array
    is_over: Array
    is_cut: Array
    is_finite: Array


@final
class CompiledEvaluation:
    """Plays as many episodes at once of one policy in one environment; compiled when it plays first."""

    def __init__(self, environment: JaxEnvironment, policy: Policy, max_steps: int, num_episodes: int):
        """Compiles nothing yet.

        Args:
            environment: of each episode.
            policy: to be judged by, of a single environment.
            max_steps: after which an episode is cut off.
            num_episodes: E.
        """
        self._environment, self._policy, self._max_steps = environment, policy, max_steps
        self._num_episodes = num_episodes
        self._start: Callable[[Array], Playing] | None = None
        self._go_on = jax.jit(self._steps)

    def play(self, params: Params, key: Array, should_stop: Callable[[], bool]) -> Playing | None:
        """Returns the episodes once all are over; None if asked to stop.

        Args:
            params: of the policy.
            key: PRNG key ``uint32[2]``.
            should_stop: asked every so many steps.
        """
        if self._start is None:
            self._start = compile_quickly(jax.jit(self._first), key)
        playing = self._start(key)
        while not np.all(playing.is_over):  # Waits for the device.
            if should_stop():
                return None
            playing = self._go_on(params, playing)
        return playing

    def _first(self, key: Array) -> Playing:
        num_episodes = self._num_episodes
        acting = start(self._environment, self._policy, num_episodes, key)
        none, is_finite = jnp.zeros(num_episodes, bool), jax.vmap(all_finite)(acting.timestep.observation)
        return Playing(acting, jnp.zeros(num_episodes), jnp.zeros(num_episodes, jnp.int32), none, none, is_finite)

    def _steps(self, params: Params, playing: Playing) -> Playing:
        reset = fill_pool(self._environment, playing.acting, playing.acting.num_steps)

        def goes_on(carry: tuple[Playing, Array]) -> Array:
            playing, count = carry
            return (count < _STEPS) & ~jnp.all(playing.is_over)

        def go_on(carry: tuple[Playing, Array]) -> tuple[Playing, Array]:
            playing, count = carry
            acting, row, _ = take_step(self._environment, self._policy, params, playing.acting, reset)
            going = ~playing.is_over
            lengths = playing.lengths + going
            has_ended = acting.timestep.step_type == LAST
            is_cut = going & ~has_ended & (lengths >= self._max_steps)
            returns = playing.returns + jnp.where(going, row.reward, 0.0)
            is_over = playing.is_over | has_ended | is_cut
            seen = row.reward, acting.timestep.observation
            is_finite = playing.is_finite & (jax.vmap(all_finite)(seen) | ~going)
            return Playing(acting, returns, lengths, is_over, playing.is_cut | is_cut, is_finite), count + 1

        last: Playing = jax.lax.while_loop(goes_on, go_on, (playing, jnp.int32(0)))[0]
        return last


@functools.lru_cache(maxsize=4)
def compiled_evaluation(
    environment: JaxEnvironment,
    policy: CompiledPolicy,
    max_steps: int,
    num_episodes: int,
    device: Any,
    attributes: Hashable,
) -> CompiledEvaluation:
    """Returns a `CompiledEvaluation`; the same one to all members of a population.

    Args:
        environment: of each episode.
        policy: to be judged by.
        max_steps: after which an episode is cut off.
        num_episodes: that are played at once.
        device: JAX's default one, for which it is compiled.
        attributes: of the environment, see `envs.jax.dm_environment.attributes_of`.
    """
    del attributes, device  # What they were is compiled in.
    return CompiledEvaluation(environment, policy.policy, max_steps, num_episodes)


@final
class DeviceEvaluator:
    """Evaluates as `evaluation.evaluate.Evaluator` does, in the compiled loop.

    Evaluation number k of a run is a function of the seed, k and the parameters. Its episodes are others than those of
    the host, of the same distribution.

    Attributes:
        num_cut: episodes of the newest evaluation that the experiment's limit of steps has cut off.
    """

    def __init__(
        self, experiment: ExperimentConfig, environment: JaxEnvironment, policy: CompiledPolicy, store: VariableSource
    ):
        """Compiles nothing yet.

        Args:
            experiment: says how long an episode may be.
            environment: its own, in JAX.
            policy: to be judged by.
            store: where parameters come from.
        """
        self._experiment = experiment
        self._environment, self._policy = environment, policy
        self._compiled: dict[tuple[int, Any], CompiledEvaluation] = {}  # By the number of episodes and the device.
        self._client = VariableClient(store, update_seconds=math.inf)
        self.num_cut = 0

    def run(
        self,
        num_episodes: int,
        number: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float] | None:
        """Returns the record of evaluation `number`; see `evaluation.evaluate.Evaluator.run`.

        As many episodes as the plan has at most are played at once, so that one program does for all evaluations; the
        first `num_episodes` count.
        """
        self._client.update(wait=True)
        key = jax.random.PRNGKey(seed_of_evaluation(self._experiment.seed, number))
        found = self._compiled_for(max(num_episodes, evaluation_plan(self._experiment).episodes)).play(
            self._client.params, key, should_stop
        )
        if found is None:
            return None
        returns, lengths, is_cut = (np.asarray(x) for x in (found.returns, found.lengths, found.is_cut))
        if not np.all(found.is_finite[:num_episodes]):
            tell_not_finite(
                f"In the evaluation at step {number:,} the environment gave a reward or an observation that is NaN or "
                "infinite.",
                self._experiment.on_nan,
            )
        self.num_cut = int(np.sum(is_cut[:num_episodes]))
        pairs = zip(returns[:num_episodes].tolist(), lengths[:num_episodes].tolist(), strict=True)
        return summarise([{"episode_return": one, "episode_length": length} for one, length in pairs])

    def _compiled_for(self, num_episodes: int) -> CompiledEvaluation:
        """Returns what plays so many episodes, of the environment as it was when it played them first."""
        device: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
        if (num_episodes, device) not in self._compiled:
            self._compiled[num_episodes, device] = compiled_evaluation(
                self._environment,
                self._policy,
                evaluation_plan(self._experiment).max_steps,
                num_episodes,
                device,
                attributes_of(self._environment),
            )
        return self._compiled[num_episodes, device]
