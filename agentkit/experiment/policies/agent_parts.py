"""Keeps what agents made of their environments' specs, so that a further run in this process compiles nothing again.

Five seeds in one notebook, a training that is resumed or evaluated where it ran: the second run of an agent begins at
once. Only agents whose functions are all agentkit's own are kept: a function of yours may read what you have changed
since, such as a global variable, and what was compiled would not know.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping
from typing import Any, final

import jax
import numpy as np

from agentkit.actors import CompiledPolicy, Policy
from agentkit.agents.common.agent import Agent, no_policy
from agentkit.child import check_not_forked
from agentkit.errors import SpecError
from agentkit.experiment.config import identity
from agentkit.experiment.config.codes import parse
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.learning import CompiledUpdate, Update
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

_MOST = 4


@final
class AgentParts:
    """Makes the networks, the update and the policies of an agent for an environment's spec, each of them once.

    Attributes:
        agent: that makes them.
        environment_spec: that they are made for.
        networks: the agent's.
    """

    def __init__(self, agent: Agent, environment_spec: EnvironmentSpec):
        """Makes the networks.

        Raises:
            SpecError: the agent cannot take such an environment.
        """
        self.agent = agent
        self.environment_spec = environment_spec
        self.networks = agent.make_networks(environment_spec)
        self._policies: dict[bool, CompiledPolicy] = {}

    @functools.cached_property
    def update(self) -> Update:
        """Returns the update on the networks."""
        update = self.agent.make_update(self.networks)
        if not hasattr(update, "update"):
            raise SpecError(f"make_update: expected a learning.Update of it, found {update!r:.80}.")
        return update

    @functools.cached_property
    def pure_policy(self) -> Policy | None:
        """Returns the policy to explore with; None of an agent that has no `make_policy`."""
        return None if self.agent.make_policy is no_policy else self.agent.make_policy(self.networks)

    @functools.cached_property
    def compiled_update(self) -> CompiledUpdate:
        """Returns the update for a learner."""
        return CompiledUpdate(self.update)

    @functools.cached_property
    def state(self) -> Nest:
        """Returns the shapes and dtypes of the training state, which is not computed for it; of an own learner ()."""
        if self.agent.make_learner is not None:
            return ()
        return state_shapes(self.update)

    def make_update(self) -> None:
        """Makes the update and traces its first state, so that what cannot work is refused here.

        Raises:
            AgentkitError: the agent's settings contradict each other, or its networks do not fit.
        """
        assert self.state is not None

    def policy(self, evaluation: bool = False) -> CompiledPolicy | OwnActing:
        """Returns the policy to explore with, or the one to be judged by; or what makes the agent's own actor."""
        if self.agent.make_actor is not None:
            return OwnActing(self.agent, self.networks, evaluation)
        if evaluation not in self._policies:
            self._policies[evaluation] = CompiledPolicy(self.agent.make_policy(self.networks, evaluation))
        return self._policies[evaluation]

    def are_of(self, agent: Agent, environment_spec: EnvironmentSpec) -> bool:
        """Returns whether this agent would make the same of this spec."""
        # 1 equals 1.0, and is another program.
        same = agent == self.agent and repr(agent.config) == repr(self.agent.config)
        return same and environment_spec == self.environment_spec


def state_shapes(update: Update) -> Nest:
    """Returns the shapes and dtypes of an update's training state, without computing it."""
    return jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))


_kept: collections.deque[AgentParts] = collections.deque(maxlen=_MOST)


def make_parts(agent: Agent, environment_spec: EnvironmentSpec) -> AgentParts:
    """Makes an agent's parts, or returns those of an equal agent for an equal spec.

    Raises:
        SpecError: the agent cannot take such an environment.
        ConfigError: this process was forked from one that had used JAX.
    """
    check_not_forked()
    if not _is_hashable(agent) or not is_agentkits(identity.describe_agent(agent, 1)["agent_parts"]):
        return AgentParts(agent, environment_spec)
    for parts in _kept:
        if parts.are_of(agent, environment_spec):
            _kept.remove(parts)
            _kept.append(parts)  # The one that was not asked for the longest goes first.
            return parts
    parts = AgentParts(agent, environment_spec)
    _kept.append(parts)
    return parts


def find_policy(agent: Agent, networks: Any, evaluation: bool) -> CompiledPolicy | OwnActing:
    """Returns the policy of networks that `make_parts` made of this agent, or makes it of any others."""
    if agent.make_actor is not None:
        return OwnActing(agent, networks, evaluation)
    for parts in _kept:
        if parts.networks is networks and parts.agent == agent:
            return parts.policy(evaluation)
    return CompiledPolicy(agent.make_policy(networks, evaluation))


def is_agentkits(parts: Mapping[str, Any]) -> bool:
    """Returns whether all functions in these parts are agentkit's own, by what `recipes.encode` wrote of them."""
    codes = [parse(part) for part in parts.values()]
    return not any(list(code.unnamed("")) for code in codes) and all(
        module.partition(".")[0] == "agentkit" for code in codes for module in code.modules()
    )


def _is_hashable(agent: Agent) -> bool:
    """Returns whether an agent can be compared as a whole: one that holds arrays, such as demonstrations, cannot."""
    try:
        hash(agent)
    except TypeError:
        return False
    return True
