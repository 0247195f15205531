"""What acts for the agents of a run: policies that learn, policies to be judged by, and chance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import jax

from agentkit.actors import CompiledPolicy, PolicyActor, ReadyPolicyActor
from agentkit.actors.policy import ActorIndex
from agentkit.actors.random_actor import RandomActor
from agentkit.adders import NullAdder
from agentkit.agents.common.agent import Agent
from agentkit.core import Adder, Parameters
from agentkit.errors import ConfigError
from agentkit.experiment.checks.agent_fits import check_fit, check_memory
from agentkit.experiment.multi_agent.config import MultiAgentConfig, policies_of
from agentkit.experiment.policies.agent_parts import AgentParts, find_policy
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.experiment.policies.own_actor import seed_of
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId
from agentkit.variables import VariableClient, VariableStore

AnyPlayer = PolicyActor | ReadyPolicyActor | RandomActor
"""Acts for one agent: in one environment, or in those of N that wait for it."""


@final
@dataclasses.dataclass(frozen=True)
class Player:
    """Holds a policy to be judged by, and its parameters; makes actors of them.

    Attributes:
        spec: of an agent that plays by it.
        policy: None for chance.
        store: has the parameters; None for chance.
        loaded: as it was read from a run or a file; None for chance, and for what learns here.
    """

    spec: EnvironmentSpec
    policy: CompiledPolicy | None = None
    store: VariableStore | None = None
    loaded: LoadedPolicy | None = None

    def make_actor(self, key: jax.Array, num_envs: int | None = None) -> AnyPlayer:
        """Makes an actor that records nothing, for one environment or for N."""
        if self.policy is None or self.store is None:
            return RandomActor(self.spec.actions, seed_of(key))
        client = VariableClient(self.store, update_seconds=math.inf)
        if num_envs is None:
            return PolicyActor(self.policy, key, client)
        return ReadyPolicyActor(self.policy, key, client, [NullAdder()] * num_envs, number_varies=True)


class _OfOne(NamedTuple):
    """Holds what `check_fit` asks of an experiment of one agent."""

    agent: Agent[Any]
    num_steps: int
    run_directory: Any
    ready: None = None
    devices: None = None
    init_from: None = None
    replay: str = "in_process"


@final
@dataclasses.dataclass
class Trained:
    """Holds a policy that learns, and who plays by it.

    Attributes:
        policy_id: its name.
        agent_ids: of those who play by it; in some episodes, where that changes.
        agent: for as many environments as there are of them, times those of the experiment.
        spec: of each of them.
        parts: of the agent.
        learned_share: of all agents' actions, the share that it learns from, on average; not asked for where policies
            change by episode.
        store: where its learner publishes.
        client: of its actors.
    """

    policy_id: str
    agent_ids: Sequence[AgentId]
    agent: Agent[Any]
    spec: EnvironmentSpec
    parts: AgentParts
    learned_share: float
    store: VariableStore = dataclasses.field(default_factory=VariableStore)

    def __post_init__(self) -> None:
        """Makes the client."""
        self.client = VariableClient(self.store)

    def make_actor(
        self, index: ActorIndex, key: jax.Array, adder: Adder | list[Adder], parameters: Parameters | None = None
    ) -> PolicyActor | ReadyPolicyActor:
        """Makes an actor of one of the agents, which explores beside the others.

        Args:
            index: among those that explore by this policy.
            key: PRNG key ``uint32[2]``.
            adder: records; of N environments, a list of one for each.
            parameters: to act by; None for the newest.
        """
        policy = self.parts.policy()
        assert isinstance(policy, CompiledPolicy), "make_trained has refused an own actor"
        if isinstance(adder, list):
            return ReadyPolicyActor(policy, key, parameters or self.client, adder, index, number_varies=True)
        return PolicyActor(policy, key, parameters or self.client, adder, index)

    def as_player(self) -> Player:
        """Returns the policy to be judged by."""
        return player_of(self.agent, self.parts.networks, self.spec, self.store)


def player_of(agent: Agent[Any], networks: Any, spec: EnvironmentSpec, store: VariableStore, run: str = "") -> Player:
    """Returns the policy of an agent that a run judges it by; the errors name the run.

    Raises:
        ConfigError: it acts by an actor of its own.
    """
    policy = find_policy(agent, networks, evaluation=True)
    if not isinstance(policy, CompiledPolicy):
        raise no_own_actor(f"The policy{run and f' of {run}'}")
    return Player(spec, policy, store)


def no_own_actor(who: str) -> ConfigError:
    """Returns the error of a policy that is no function."""
    return ConfigError(
        f"{who} acts by an actor of its own (make_actor), which several agents cannot have yet. Give it a make_policy."
    )


def make_trained(
    config: MultiAgentConfig,
    policy_id: str,
    agent: Agent[Any],
    by_policy: Mapping[str, Sequence[AgentId]],
    spec: EnvironmentSpec,
) -> Trained:
    """Makes the parts of a policy that learns.

    Args:
        config: what is run.
        policy_id: its name.
        agent: that learns it.
        by_policy: the ids of the agents that play by each policy.
        spec: of each agent that plays by it.

    Raises:
        SpecError: the agent cannot take what these agents see and do.
        ConfigError: its settings contradict each other, or it has an actor of its own.
    """
    if agent.make_actor is not None:
        raise no_own_actor(f"policies[{policy_id!r}]")
    agent_ids = by_policy[policy_id]
    agent = agent.with_num_envs(len(agent_ids) * (config.num_envs or 1))
    num_steps = config.num_steps * (1 if config.count_steps_by == "agents" else len(agent_ids))
    one = _OfOne(agent, num_steps, config.run_directory)
    try:
        parts = check_fit(one, spec)
        check_memory(one, spec)
    except ConfigError as error:
        raise type(error)(f"policies[{policy_id!r}]: {error}") from error
    share = len(agent_ids) / sum(map(len, by_policy.values()))
    if config.opponents is not None:
        policies = policies_of(config, by_policy)
        learning = sum(len(ids) for other, ids in by_policy.items() if isinstance(policies[other], Agent))
        share *= config.opponents.learning_share(learning)
    return Trained(policy_id, agent_ids, agent, spec, parts, share)
