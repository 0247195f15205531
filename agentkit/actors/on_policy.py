"""Sampling policies, with or without a memory, and observations normalised by what the learner has seen."""

from __future__ import annotations

from typing import NamedTuple

import jax

from agentkit.actors.policy import Params, Policy, PolicyState, unchanged
from agentkit.networks import NestStatistics, PolicyExtras, PolicyValue, normalize_nest, step_one
from agentkit.types import Nest

MAX_NORMALIZED = 10.0
"""Normalised observations are clipped to this absolute value."""


class PolicyVariables(NamedTuple):
    """Holds the published variables where observations are normalised: all that acting needs.

    Attributes:
        params: of the networks.
        statistics: of the observations' leaves; ``()`` where they are not normalised.
    """

    params: Params
    statistics: NestStatistics

    def normalized(self, observation: Nest) -> Nest:
        """Normalises one observation, or any batch of them, for the networks."""
        return normalize_nest(self.statistics, observation, MAX_NORMALIZED)


def stochastic_policy(networks: PolicyValue, evaluation: bool = False) -> Policy:
    """Samples actions and emits their log-probabilities (`networks.PolicyExtras`); in evaluation takes the mode.

    The state is that of the networks, anew in each episode.
    """
    network = networks.network

    def act(params: Params, key: jax.Array, observation: Nest, core: PolicyState) -> tuple[Nest, PolicyState, Nest]:
        (distribution, _), next_core = step_one(network, params, observation, core)
        if evaluation:
            return networks.to_action(distribution.mode()), next_core, ()
        sample = distribution.sample(key)
        return networks.to_action(sample), next_core, PolicyExtras(sample, distribution.log_prob(sample), core)

    reset = (lambda core: network.initial_state) if networks.has_memory else unchanged
    extras_spec = () if evaluation else networks.extras_spec
    return Policy(act, init=lambda key: network.initial_state, reset=reset, extras_spec=extras_spec)


def with_normalized_observations(policy: Policy) -> Policy:
    """Turns a policy of parameters into one of `PolicyVariables`, whose statistics normalise its observations."""

    def act(
        variables: PolicyVariables, key: jax.Array, observation: Nest, state: PolicyState
    ) -> tuple[Nest, PolicyState, Nest]:
        return policy.act(variables.params, key, variables.normalized(observation), state)

    return policy._replace(act=act)
