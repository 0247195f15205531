"""Plays with a policy in environments that it keeps, and takes the steps as arrays: what a `Sampler` has, wherever."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
from typing import Any, NamedTuple, final

import jax
import numpy as np

from agentkit.actors import ActorIndex, CompiledPolicy, Policy
from agentkit.actors.batches import SplitAdder
from agentkit.actors.compiled import compiled
from agentkit.adders.base import make_cast
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment.config.evaluation_plan import evaluation_plan, warn_of_cut
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.judging import experiment_of_policy
from agentkit.experiment.evaluation.samples import Recorder, Samples, stack
from agentkit.experiment.policies.agent_parts import find_policy, make_parts
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.experiment.policies.loading import load_one_agent
from agentkit.experiment.policies.make_actor import add_columns, make_actor, make_loop
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.experiment.policies.restore_policy import check_fits, restore_policy, steps_explored
from agentkit.specs import is_batched, make_environment_spec
from agentkit.types import Nest
from agentkit.variables import VariableClient, VariableStore


class Travelling(NamedTuple):
    """Holds a loaded policy as another process can take it: compiled functions stay where they are.

    Attributes:
        experiment: whose agent and environment are meant; of its run folder nothing is read.
        arrays: the parameters.
        explore: whether the policy acts as in training.
        num_steps: at which its exploration goes on.
    """

    experiment: ExperimentConfig
    arrays: Nest
    explore: bool
    num_steps: int


class Acting(NamedTuple):
    """Holds what acts and in what.

    Attributes:
        experiment: makes the environment.
        policy: to act with.
        store: where the parameters are.
        num_steps: at which exploration on a schedule goes on.
    """

    experiment: ExperimentConfig
    policy: Policy | CompiledPolicy | OwnActing
    store: VariableStore
    num_steps: int


def find_acting(source: Any, checkpoint: str | int, explore: bool, options: dict[str, Any]) -> Acting:
    """Returns what acts and in what; see `sampling.Sampler`."""
    is_file = isinstance(source, str | pathlib.Path) and (pathlib.Path(source).is_file() or str(source)[:3] == "hf:")
    if is_file:
        imports = options.pop("imports", ())
        source = load_one_agent(source, checkpoint=checkpoint, explore=explore, imports=imports)
    store = VariableStore()
    if isinstance(source, LoadedPolicy):
        if explore and not is_file:
            raise ConfigError("A policy acts as it was loaded. Load it with load(..., explore=True) instead.")
        if checkpoint != "newest" and not is_file:
            raise ConfigError(f"A policy has no checkpoints: leave out {checkpoint=}.")
        experiment = experiment_of_policy(source, options)
        store.publish(0, {"policy": source.arrays})
        with contextlib.closing(experiment.make_environment(0)) as made:
            check_fits(make_environment_spec(made), source.agent_observation_spec, source.agent_action_spec)
        return Acting(experiment, source.acting, store, source.num_steps)
    if isinstance(source, Travelling) or (isinstance(source, ExperimentConfig) and source.run_directory is None):
        if checkpoint != "newest":
            raise ConfigError(f"The experiment has no run_directory, and so no checkpoints: leave out {checkpoint=}.")
        experiment = source if isinstance(source, ExperimentConfig) else source.experiment
        experiment = ExperimentConfig(**{**vars(experiment), **options})
        with contextlib.closing(experiment.make_environment(experiment.seed)) as made:
            parts = make_parts(experiment.agent, make_environment_spec(made))
        if isinstance(source, Travelling):
            store.publish(0, {"policy": source.arrays})
            return Acting(experiment, parts.policy(evaluation=not source.explore), store, source.num_steps)
        learner_key, _ = jax.random.split(jax.random.PRNGKey(experiment.seed))  # As the run would begin.
        store.publish(0, parts.compiled_update.variables(parts.compiled_update.init(learner_key)))
        return Acting(experiment, parts.policy(evaluation=not explore), store, 0)
    restored = restore_policy(source, checkpoint, **options)
    policy = find_policy(restored.experiment.agent, restored.networks, evaluation=not explore)
    found = restored.found
    num_steps = 0 if found is None else steps_explored(found.state, found.step)
    return Acting(restored.experiment, policy, restored.store, num_steps)


@final
class SamplingWorker:
    """Keeps a policy and its environments from one call to the next."""

    def __init__(self, acting: Acting, num_envs: int | None, seed: int, explore: bool):
        """Makes the environments; see `sampling.Sampler`."""
        self._experiment, policy, self._store, num_steps = acting
        self._policy = policy if isinstance(policy, OwnActing) else compiled(policy)
        self._actor_index = ActorIndex(num_steps=num_steps)
        environment_seed, key_seed = np.random.SeedSequence([self._experiment.seed, 3, seed]).generate_state(2) >> 1
        self._key = jax.random.PRNGKey(int(key_seed))
        self._environment = self._experiment.make_environment(int(environment_seed), num_envs, evaluation=not explore)
        self._goes_on = False

    def sample(self, num_steps: int | None = None, num_episodes: int | None = None) -> Samples:
        """Returns steps or episodes; see `sampling.Sampler.sample`."""
        limit = None if num_episodes is None else evaluation_plan(self._experiment).max_steps
        if num_episodes is not None or not self._goes_on:
            self._begin(limit)
        self._goes_on = num_episodes is None
        self._actor.update(wait=True)
        recorders, loop = self._recorders, self._loop
        if num_episodes is None:
            assert num_steps is not None, "Who calls this has seen to it."
            while sum(len(recorder.rows) for recorder in recorders) < num_steps:
                loop.step()
            rows = sorted((row for recorder in recorders for row in recorder.rows), key=lambda row: row.order)
            rows = rows[:num_steps]
            for recorder in recorders:
                recorder.take_until(rows[-1].order)
            return stack(rows)
        num_envs = len(recorders)
        shares = [num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)]
        while any(recorder.num_ended < share for recorder, share in zip(recorders, shares, strict=True)):
            loop.step()
        if limit is not None:
            warn_of_cut(loop.num_cut, limit)
        return stack([row for recorder, share in zip(recorders, shares, strict=True) for row in recorder.first(share)])

    def _begin(self, limit: int | None) -> None:
        """Makes an actor and a loop, which will begin an episode in each environment."""
        environment = self._environment
        spec, batched = make_environment_spec(environment), is_batched(environment)
        cast, order = make_cast(spec.rewards, "reward"), itertools.count()
        self._recorders = [Recorder(i, order, cast, limit) for i in range(environment.num_envs if batched else 1)]
        adder = add_columns(environment, spec, SplitAdder(self._recorders) if batched else self._recorders[0])
        client = VariableClient(self._store)
        self._actor = make_actor(environment, self._policy, self._key, client, adder, self._actor_index)
        self._loop = make_loop(environment, self._actor, on_nan=self._experiment.on_nan, max_episode_steps=limit)
        self._key = jax.random.fold_in(self._key, 0)  # For the next actor.

    def set_parameters(self, parameters: Nest) -> None:
        """Lets the policy act with these; see `sampling.Sampler.set_parameters`."""
        held = VariableClient(self._store).params
        expected, found = (jax.tree.map(lambda x: (np.shape(x), np.asarray(x).dtype), x) for x in (held, parameters))
        if expected != found:
            raise SpecError(
                "set_parameters: expected the structure, shapes and dtypes of the parameters that the policy has, "
                f"found {found!s:.200}. Give what its learner publishes as 'policy', or a policy of the same agent."
            )
        self._store.publish(self._store.version + 1, {"policy": parameters})

    def close(self) -> None:
        """Closes the environments."""
        self._environment.close()
