"""Builds an actor, its adder and its loop, for one environment or for a batch, in every process that acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from agentkit.actors import ActorIndex, BatchedPolicyActor, CompiledPolicy, Policy, PolicyActor, ReadyPolicyActor
from agentkit.actors.batches import SplitAdder
from agentkit.actors.policy import ALONE
from agentkit.adders import ColumnsAdder, TeeAdder
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.experience import Segments
from agentkit.core import Adder
from agentkit.counting import Counter
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop, Log, Observer, ReadyEnvironmentLoop
from agentkit.envs.step_check import StepCheck
from agentkit.errors import ConfigError, OnNan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.policies.own_actor import OwnActing, OwnActor
from agentkit.replay import Replay, Table, with_room
from agentkit.specs import EnvironmentSpec, is_batched, make_environment_spec
from agentkit.variables import VariableClient

AnyActor = PolicyActor | BatchedPolicyActor | ReadyPolicyActor | OwnActor
AnyLoop = EnvironmentLoop | BatchedEnvironmentLoop | ReadyEnvironmentLoop


def num_ready(environment: Any) -> int | None:
    """Returns how many environments of a batch are acted for at a time, whichever are ready; None for all of them."""
    ready: int | None = getattr(environment, "num_ready", None) if is_batched(environment) else None
    return ready


def _in_step(environment: Any) -> bool:
    """Returns whether this is a batch of environments that all move at each step, by their own or to a new episode."""
    return is_batched(environment) and not getattr(environment, "begins_apart", False)


def make_adder(
    environment: Any, spec: EnvironmentSpec, destinations: Sequence[tuple[Agent, Replay]]
) -> Adder | list[Adder]:
    """Builds the adder of an actor: for an environment or a batch of them, and for all who learn from its steps.

    Where those of a batch that are ready are acted for, each environment has an adder of its own, in a list.

    Args:
        environment: what the actor will act in.
        spec: its spec.
        destinations: agents, each with the replay that it learns from.
    """

    def make(num_envs: int | None) -> Adder:
        adders = [agent.make_adder(replay, spec, num_envs) for agent, replay in destinations]
        return adders[0] if len(adders) == 1 else TeeAdder(adders)

    if spec.columns and len(destinations) > 1:
        raise ConfigError("columns: expected one learner of these steps, found several. Leave columns out.")
    if num_ready(environment) is not None:
        return [add_columns(environment, spec, make(None), number) for number in range(environment.num_envs)]
    if is_batched(environment) and not _in_step(environment):
        return add_columns(environment, spec, SplitAdder([make(None) for _ in range(environment.num_envs)]))
    return add_columns(environment, spec, make(environment.num_envs if is_batched(environment) else None))


def add_columns(environment: Any, spec: EnvironmentSpec, adder: Adder, number: int | None = None) -> Adder:
    """Returns an adder that also takes the columns which the environment's spec has; itself where it has none.

    Args:
        environment: what the actor will act in.
        spec: its spec.
        adder: to be given the columns among the extras.
        number: of the one environment of a batch that the adder is for; None for all of it.
    """
    if not spec.columns:
        return adder
    if number is not None:
        return ColumnsAdder(
            adder,
            spec.columns,
            lambda: {name: x[number] for name, x in environment.info_columns.items()},
            number=number,
        )
    num_envs = environment.num_envs if is_batched(environment) else None
    return ColumnsAdder(adder, spec.columns, lambda: environment.info_columns, num_envs=num_envs)


def make_own_tables(experiment: ExperimentConfig, spec: EnvironmentSpec, environment: Any) -> list[Table]:
    """Returns the tables of a process that fills them from an environment and draws from them in one thread."""
    if is_batched(environment) and _in_step(environment) and num_ready(environment) is None:
        return experiment.agent.make_tables(spec)  # A step fills one row of each environment.
    num_envs = (num_ready(environment) or environment.num_envs) if is_batched(environment) else 1
    return make_tables_with_room(experiment.agent, spec, num_envs)


def make_tables_with_room(agent: Agent, spec: EnvironmentSpec, num_writers: int) -> list[Table]:
    """Returns an agent's tables, with room for all that is written at one step before anybody draws.

    Args:
        agent: the agent.
        spec: of its environment.
        num_writers: environments of one step, or agents in them, each with an adder of its own.
    """
    tables, experience = agent.make_tables(spec), agent.experience
    ends_two = isinstance(experience, Segments) and experience.segment_length == 1 and not experience.completes_episodes
    if num_writers == 1 and not ends_two:
        return tables  # As they are in a Reverb run that goes on: it takes the room that it was saved with.
    # Each ends two segments at most: where an episode ends, it fills two rows.
    return [with_room(table, 2 * num_writers) for table in tables]


def make_actor(
    environment: Any,
    policy: Policy | CompiledPolicy | OwnActing,
    key: jax.Array,
    client: VariableClient,
    adder: Adder | list[Adder] | None = None,
    actor_index: ActorIndex = ALONE,
) -> AnyActor:
    """Builds the actor for an environment, or for a batch of them (EnvPool's single environment is one, too).

    Args:
        environment: what it will act in.
        policy: how to act; or what makes the agent's own actor.
        key: PRNG key ``uint32[2]``.
        client: where parameters come from.
        adder: what `make_adder` made; None records nothing.
        actor_index: which one it is of the actors that explore together.
    """
    if isinstance(policy, OwnActing):
        assert not isinstance(adder, list), "check_own_boxes has refused it"

        def make_policy_actor(stock: Policy, lent: Adder | None) -> Any:
            return make_actor(environment, stock, key, client, lent, actor_index)

        return policy.make(
            make_environment_spec(environment), key, client, adder,
            num_envs=environment.num_envs if is_batched(environment) else None, environment=environment,
            make_policy_actor=make_policy_actor, actor_index=actor_index,
        )  # fmt: skip
    if isinstance(adder, list):
        return ReadyPolicyActor(policy, key, client, adder, actor_index)
    if not is_batched(environment):
        return PolicyActor(policy, key, client, adder, actor_index)
    return BatchedPolicyActor(policy, key, client, adder, num_envs=environment.num_envs, actor_index=actor_index)


def make_loop(
    environment: Any,
    actor: Any,
    counter: Counter | None = None,
    log: Log | None = None,
    on_nan: OnNan = "stop",
    observers: Sequence[Observer] = (),
    max_episode_steps: int | None = None,
) -> AnyLoop:
    """Builds the loop in which actor and environment meet, and where each time step is checked.

    Args:
        environment: one, or a batch.
        actor: as `make_actor` made it.
        counter: see `EnvironmentLoop`.
        log: see `EnvironmentLoop`.
        on_nan: what to do about a reward or observation that is not finite.
        observers: see `EnvironmentLoop`.
        max_episode_steps: see `EnvironmentLoop`; of those of a batch that are ready, nothing is cut.
    """
    num_envs = environment.num_envs if is_batched(environment) else None
    ready = num_ready(environment)
    check = StepCheck(make_environment_spec(environment), ready or num_envs, on_nan)
    shared: dict[str, Any] = {"counter": counter, "log": log, "observers": observers, "check": check}
    if ready is not None:
        return ReadyEnvironmentLoop(environment, actor, **shared)
    make = EnvironmentLoop if num_envs is None else BatchedEnvironmentLoop
    return make(environment, actor, **shared, max_episode_steps=max_episode_steps)
