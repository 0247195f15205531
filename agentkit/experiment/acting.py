"""Builds an actor, its adder and its loop, for one environment or for a batch, in every process that acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from agentkit.actors import ActorIndex, BatchedPolicyActor, Policy, PolicyActor
from agentkit.actors.policy import ALONE
from agentkit.adders import TeeAdder
from agentkit.agents.common.agent import Agent
from agentkit.core import Actor, Adder
from agentkit.counting import Counter
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop, Log, Observer
from agentkit.envs.step_check import StepCheck
from agentkit.errors import OnNan
from agentkit.replay import Replay
from agentkit.specs import EnvironmentSpec, is_batched, make_environment_spec
from agentkit.variables import VariableClient


def make_adder(environment: Any, spec: EnvironmentSpec, destinations: Sequence[tuple[Agent, Replay]]) -> Adder:
    """Builds the adder of an actor: for an environment or a batch of them, and for all who learn from its steps.

    Args:
        environment: what the actor will act in.
        spec: its spec.
        destinations: agents, each with the replay that it learns from.
    """
    num_envs = environment.num_envs if is_batched(environment) else None
    adders = [agent.make_adder(replay, spec, num_envs) for agent, replay in destinations]
    return adders[0] if len(adders) == 1 else TeeAdder(adders)


def make_actor(
    environment: Any,
    policy: Policy,
    key: jax.Array,
    client: VariableClient,
    adder: Adder | None = None,
    actor_index: ActorIndex = ALONE,
) -> PolicyActor | BatchedPolicyActor:
    """Builds the actor for an environment, or for a batch of them (EnvPool's single environment is one, too).

    Args:
        environment: what it will act in.
        policy: how to act.
        key: PRNG key ``uint32[2]``.
        client: where parameters come from.
        adder: what `make_adder` made; None records nothing.
        actor_index: which one it is of the actors that explore together.
    """
    if not is_batched(environment):
        return PolicyActor(policy, key, client, adder, actor_index)
    return BatchedPolicyActor(policy, key, client, adder, num_envs=environment.num_envs, actor_index=actor_index)


def make_loop(
    environment: Any,
    actor: Actor,
    counter: Counter | None = None,
    log: Log | None = None,
    on_nan: OnNan = "stop",
    observers: Sequence[Observer] = (),
) -> EnvironmentLoop | BatchedEnvironmentLoop:
    """Builds the loop in which actor and environment meet, and where each time step is checked.

    Args:
        environment: one, or a batch.
        actor: as `make_actor` made it.
        counter: see `EnvironmentLoop`.
        log: see `EnvironmentLoop`.
        on_nan: what to do about a reward or observation that is not finite.
        observers: see `EnvironmentLoop`.
    """
    num_envs = environment.num_envs if is_batched(environment) else None
    check = StepCheck(make_environment_spec(environment), num_envs, on_nan)
    if num_envs is not None:
        return BatchedEnvironmentLoop(environment, actor, counter=counter, log=log, observers=observers, check=check)
    return EnvironmentLoop(environment, actor, counter=counter, log=log, observers=observers, check=check)
