"""Says who plays by which policy: in an episode, and in all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agentkit.agents.common.agent import Agent
from agentkit.errors import ConfigError, SpecError, unknown_name
from agentkit.experiment.multi_agent.config import (
    EACH,
    SHARED,
    MultiAgentConfig,
    changes_by_episode,
    check_word,
    policies_of,
)
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId

TRIED_EPISODES = 100
"""So many episodes a function of agent id and episode is tried for, before anything starts."""


def who_plays(config: MultiAgentConfig, agent_ids: Collection[AgentId], episode: int = 0) -> dict[AgentId, str]:
    """Returns the policy id of each agent id.

    Args:
        config: says it.
        agent_ids: of the environment.
        episode: its number in the run, from 0; where it is not asked for, all episodes are alike.

    Raises:
        ConfigError: an agent has no policy.
    """
    found = _named(config, list(agent_ids), episode)
    known = policies_of(config, agent_ids)
    where = f" in episode {episode:,}" if changes_by_episode(config.policy_of) else ""
    for agent_id, policy_id in found.items():
        check_word("agent id", agent_id)
        if policy_id not in known:
            raise unknown_name(f"policy of {agent_id!r}{where}", str(policy_id), known)
    return found


def agents_by_policy(
    config: MultiAgentConfig, agent_specs: Mapping[AgentId, EnvironmentSpec]
) -> dict[str, list[AgentId]]:
    """Returns the ids of the agents that play by each policy, by policy id.

    Where that changes by episode, these are all whose specs are those of one that plays by it in the first 100.

    Args:
        config: says it.
        agent_specs: of the environment.

    Raises:
        ConfigError: an agent has no policy, or a policy nobody who plays by it; or the function of agent id and episode
            does not always say the same.
        SpecError: agents share a policy that see or do different things.
    """
    changes = changes_by_episode(config.policy_of)
    found: dict[str, list[AgentId]] = {policy_id: [] for policy_id in policies_of(config, agent_specs)}
    for episode in range(TRIED_EPISODES if changes else 1):
        plays = who_plays(config, agent_specs, episode)
        if changes and (again := who_plays(config, agent_specs, episode)) != plays:
            raise ConfigError(
                f"policy_of: of episode {episode} it said {plays}, and then {again}, and a resumed run needs the same. "
                "Draw by a generator that is made of the episode's number: numpy.random.default_rng([seed, episode])."
            )
        for agent_id, policy_id in plays.items():
            if agent_id not in found[policy_id]:
                found[policy_id].append(agent_id)
                _check_alike(found[policy_id][0], agent_id, policy_id, agent_specs)
    when = f" in the episodes 0 to {TRIED_EPISODES - 1}, by which its specs are found" if changes else ""
    if idle := [policy_id for policy_id, agent_ids in found.items() if not agent_ids]:
        raise ConfigError(
            f"Nobody plays by the policies {', '.join(sorted(idle))}{when}. Leave them out, or see policy_of."
        )
    if not changes:
        return found
    return {
        policy_id: [each for each, spec in agent_specs.items() if spec == agent_specs[agent_ids[0]]]
        for policy_id, agent_ids in found.items()
    }


def _check_alike(one: AgentId, other: AgentId, policy_id: str, agent_specs: Mapping[AgentId, EnvironmentSpec]) -> None:
    for what, ours, theirs in zip(EnvironmentSpec._fields, agent_specs[one], agent_specs[other], strict=True):
        if ours != theirs:
            raise SpecError(
                f"{one!r} and {other!r} share the policy {policy_id!r} and have different {what}: {ours!r:.200} "
                f"and {theirs!r:.200}. Give each a policy of its own: policy_of='each' (--policies each)."
            )


def _named(config: MultiAgentConfig, agent_ids: list[AgentId], episode: int) -> dict[AgentId, str]:
    given: Any = config.policy_of
    if given == EACH:
        return {agent_id: agent_id for agent_id in agent_ids}
    if given == SHARED or given is None:
        names = [SHARED] if isinstance(config.policies, Agent) else list(config.policies)
        if len(names) == 1:
            return dict.fromkeys(agent_ids, names[0])
        if given is None and set(names) == set(agent_ids):
            return {agent_id: agent_id for agent_id in agent_ids}
        raise ConfigError(
            f"policy_of: there are the policies {', '.join(names)} and the agents {', '.join(agent_ids)}. Say who "
            "plays by which: a dictionary from agent id to policy id, or a function."
        )
    if isinstance(given, str):
        raise unknown_name("policy_of", given, (SHARED, EACH), "Or a dictionary, or a function of the agent id.")
    if isinstance(given, Mapping):
        if given.keys() != set(agent_ids):
            raise ConfigError(
                f"policy_of: expected a policy of each of {', '.join(agent_ids)}; found those of "
                f"{', '.join(map(str, given)) or 'nobody'}."
            )
        return {agent_id: given[agent_id] for agent_id in agent_ids}
    more = (episode,) if changes_by_episode(given) else ()
    return {agent_id: given(agent_id, *more) for agent_id in agent_ids}
