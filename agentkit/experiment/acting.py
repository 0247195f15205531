"""An actor and its loop for one environment or for a batch: the same choice in every process that acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from agentkit.actors import BatchedPolicyActor, Policy, PolicyActor
from agentkit.core import Adder
from agentkit.counting import Counter
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop, Log
from agentkit.specs import is_batched
from agentkit.variables import VariableClient


def make_actor(
    environment: Any,
    policy: Policy,
    key: jax.Array,
    client: VariableClient,
    make_adder: Callable[[], Adder] | None = None,
) -> PolicyActor | BatchedPolicyActor:
    """The actor for an environment, or for a batch of them (EnvPool's single environment is one, too).

    Args:
        environment: what it will act in.
        policy: how to act.
        key: PRNG key ``uint32[2]``.
        client: where parameters come from.
        make_adder: makes an adder, one for each environment; None records nothing.
    """
    if not is_batched(environment):
        return PolicyActor(policy, key, client, None if make_adder is None else make_adder())
    adders = None if make_adder is None else [make_adder() for _ in range(environment.num_envs)]
    return BatchedPolicyActor(policy, key, client, adders, num_envs=environment.num_envs)


def make_loop(
    environment: Any,
    actor: PolicyActor | BatchedPolicyActor,
    counter: Counter | None = None,
    log: Log | None = None,
) -> EnvironmentLoop | BatchedEnvironmentLoop:
    """The loop in which they meet; see `EnvironmentLoop`."""
    if is_batched(environment):
        return BatchedEnvironmentLoop(environment, actor, counter=counter, log=log)
    return EnvironmentLoop(environment, actor, counter=counter, log=log)
