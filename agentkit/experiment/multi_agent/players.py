"""What acts for the agents of a run: policies that learn, policies of other runs, and chance."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import jax

from agentkit import nests
from agentkit.actors import CompiledPolicy, PolicyActor
from agentkit.actors.policy import ALONE, ActorIndex
from agentkit.actors.random_actor import RandomActor
from agentkit.agents.common.agent import Agent
from agentkit.core import Adder
from agentkit.errors import CheckpointError, ConfigError, unknown_name
from agentkit.experiment.checks.agent_fits import check_fit, check_memory
from agentkit.experiment.multi_agent.config import (
    Frozen,
    MultiAgentConfig,
    is_of_several_agents,
    policies_of,
    read_multi_agent_config,
    who_plays,
)
from agentkit.experiment.policies.agent_parts import AgentParts, find_policy, make_parts
from agentkit.experiment.policies.own_actor import seed_of
from agentkit.experiment.policies.restore_policy import check_fits, find_checkpoint, placeholders, restore_policy
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId
from agentkit.variables import VariableClient, VariableStore

AnyPlayer = PolicyActor | RandomActor


@final
@dataclasses.dataclass(frozen=True)
class Player:
    """Holds a policy to be judged by, and its parameters; makes actors of them.

    Attributes:
        spec: of an agent that plays by it.
        policy: None for chance.
        store: has the parameters; None for chance.
    """

    spec: EnvironmentSpec
    policy: CompiledPolicy | None = None
    store: VariableStore | None = None

    def make_actor(self, key: jax.Array) -> AnyPlayer:
        """Makes an actor that records nothing."""
        if self.policy is None or self.store is None:
            return RandomActor(self.spec.actions, seed_of(key))
        return PolicyActor(self.policy, key, VariableClient(self.store, update_seconds=math.inf))


class _OfOne(NamedTuple):
    """Holds what `check_fit` asks of an experiment of one agent."""

    agent: Agent[Any]
    num_steps: int
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
        agent_ids: of those who play by it.
        agent: for as many environments as there are of them.
        spec: of each of them.
        parts: of the agent.
        store: where its learner publishes.
        client: of its actors.
    """

    policy_id: str
    agent_ids: Sequence[AgentId]
    agent: Agent[Any]
    spec: EnvironmentSpec
    parts: AgentParts
    store: VariableStore = dataclasses.field(default_factory=VariableStore)

    def __post_init__(self) -> None:
        """Makes the client."""
        self.client = VariableClient(self.store)

    def make_actor(self, number: int, key: jax.Array, adder: Adder) -> PolicyActor:
        """Makes the actor of the agent of this number, which explores beside the others."""
        policy = self.parts.policy()
        assert isinstance(policy, CompiledPolicy), "make_trained has refused an own actor"
        index = ALONE if len(self.agent_ids) == 1 else ActorIndex(number, len(self.agent_ids))
        return PolicyActor(policy, key, self.client, adder, index)

    def as_player(self) -> Player:
        """Returns the policy to be judged by."""
        return _player(self.agent, self.parts.networks, self.spec, self.store)


def _player(agent: Agent[Any], networks: Any, spec: EnvironmentSpec, store: VariableStore, run: str = "") -> Player:
    policy = find_policy(agent, networks, evaluation=True)
    if not isinstance(policy, CompiledPolicy):
        raise _no_own_actor(f"The policy{run and f' of {run}'}")
    return Player(spec, policy, store)


def _no_own_actor(who: str) -> ConfigError:
    return ConfigError(
        f"{who} acts by an actor of its own (make_actor), which several agents cannot have yet. Give it a make_policy."
    )


def make_trained(
    config: MultiAgentConfig, policy_id: str, agent: Agent[Any], agent_ids: Sequence[AgentId], spec: EnvironmentSpec
) -> Trained:
    """Makes the parts of a policy that learns.

    Raises:
        SpecError: the agent cannot take what these agents see and do.
        ConfigError: its settings contradict each other, or it has an actor of its own.
    """
    if agent.make_actor is not None:
        raise _no_own_actor(f"policies[{policy_id!r}]")
    agent = agent.with_num_envs(len(agent_ids))
    one = _OfOne(agent, config.num_steps * len(agent_ids))
    try:
        parts = check_fit(one, spec)
        check_memory(one, spec)
    except ConfigError as error:
        raise type(error)(f"policies[{policy_id!r}]: {error}") from error
    return Trained(policy_id, agent_ids, agent, spec, parts)


def load_player(frozen: Frozen | str, spec: EnvironmentSpec) -> Player:
    """Returns a policy that learns nothing here.

    Args:
        frozen: of another run; or "random".
        spec: of the agents that are to play by it.

    Raises:
        ConfigError: there is no such run, checkpoint or policy.
        CheckpointError: it has no readable checkpoint.
        SpecError: it was trained for others than these.
    """
    if isinstance(frozen, str):
        return Player(spec)
    if is_of_several_agents(frozen.run):
        players = load_players(read_multi_agent_config(frozen.run), frozen.run, frozen.checkpoint)
        if frozen.policy is None and len(players) > 1:
            raise ConfigError(
                f"{frozen.run} has the policies {', '.join(players)}: say which, Frozen(run, policy=...)."
            )
        wanted = next(iter(players)) if frozen.policy is None else frozen.policy
        if wanted not in players:
            raise unknown_name(f"policy of {frozen.run}", wanted, players)
        player = players[wanted]
    else:
        if frozen.policy is not None:
            raise ConfigError(f"{frozen.run} is a run of one agent; leave out policy={frozen.policy!r}.")
        restored = restore_policy(frozen.run, frozen.checkpoint)
        agent, spec_then = restored.experiment.agent, restored.environment_spec
        player = _player(agent, restored.networks, spec_then, restored.store, str(frozen.run))
    check_fits(spec, player.spec.observations, player.spec.actions)
    return player


def load_players(config: MultiAgentConfig, run: Any, checkpoint: str | int = "newest") -> dict[str, Player]:
    """Returns the policies of a run of several agents, by id.

    Args:
        config: the run's.
        run: its folder.
        checkpoint: "newest", or a step.

    Raises:
        ConfigError: there is no such checkpoint.
        CheckpointError: there is none that can be read, or it is of other policies.
    """
    found = find_checkpoint(run, checkpoint)
    with contextlib.closing(config.make_environment(config.seed)) as environment:
        agent_specs: Mapping[AgentId, EnvironmentSpec] = environment.agent_specs()
    plays = who_plays(config, agent_specs)
    players = {}
    for policy_id, policy in policies_of(config, agent_specs).items():
        agent_ids = [agent_id for agent_id, other in plays.items() if other == policy_id]
        spec = agent_specs[agent_ids[0]]
        if not isinstance(policy, Agent):
            players[policy_id] = load_player(policy, spec)
            continue
        if policy_id not in found.state["learner"]:
            raise CheckpointError(f"{found.path} has no policy {policy_id!r}; it is of another experiment.")
        agent = policy.with_num_envs(len(agent_ids))
        parts, store = make_parts(agent, spec), VariableStore()
        learner = found.state["learner"][policy_id]
        if agent.make_learner is not None:
            raise ConfigError(f"{policy_id!r} has a learner of its own, whose policy cannot be read from a folder yet.")
        state = nests.restore_from_paths(placeholders(parts.state), learner["state"], f"The learner of {policy_id!r}")
        store.publish(int(learner["num_updates"]), parts.compiled_update.variables(state))
        players[policy_id] = _player(agent, parts.networks, spec, store)
    return players
