"""Changes the policies that agents play by, at the start of each episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import dm_env
import jax
import numpy as np

from agentkit.core import Actor
from agentkit.errors import CheckpointError, SpecError
from agentkit.experiment.multi_agent.assigning.who_plays import who_plays
from agentkit.experiment.multi_agent.config import MultiAgentConfig, changes_by_episode
from agentkit.experiment.multi_agent.players import AnyPlayer, Player
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Nest

RETURN_BY = "policy_return/"
"""Of a record: before a policy id, the name of the mean return of the agents that have played by it."""


@final
class ChangingActor(Actor):
    """Acts for one agent by another policy in each episode, with an actor of each.

    These have adders of their own, which see whole episodes of this agent, one after another.

    Attributes:
        actors: by policy id.
        policy_id: of this episode.
        takes_part: whether the agent has been there in this episode.
        num_actions: that were chosen so far, by policy id.
    """

    def __init__(self, actors: Mapping[str, AnyPlayer]):
        """Takes the actors by policy id, in one environment."""
        self.actors: dict[str, Any] = dict(actors)  # Those of `AnyPlayer` that act in one environment.
        self.policy_id = next(iter(actors))
        self.takes_part = False
        self.num_actions = dict.fromkeys(actors, 0)

    def begin(self, policy_id: str) -> None:
        """Plays by a policy from the next episode on."""
        self.policy_id, self.takes_part = policy_id, False

    def select_action(self, observation: Nest) -> Nest:
        """See `core.Actor`."""
        self.num_actions[self.policy_id] += 1
        return self.actors[self.policy_id].select_action(observation)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`."""
        self.takes_part = True
        self.actors[self.policy_id].observe_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`."""
        self.actors[self.policy_id].observe(action, next_timestep)

    def update(self, wait: bool = False) -> None:
        """See `core.Actor`."""
        for actor in self.actors.values():
            actor.update(wait)

    def save(self, mid_episode: bool = True) -> dict[str, Any]:
        """Returns the state of all actors, how often each has acted, and by which policy this episode is played."""
        return {
            "actors": {policy_id: actor.save(mid_episode) for policy_id, actor in self.actors.items()},
            "num_actions": dict(self.num_actions),
            "policy_id": self.policy_id,
            "takes_part": self.takes_part and mid_episode,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        for policy_id, actor in self.actors.items():
            actor.restore(state["actors"][policy_id])
            self.num_actions[policy_id] = int(state["num_actions"][policy_id])
        self.policy_id, self.takes_part = str(state["policy_id"]), bool(state["takes_part"])

    def close(self) -> None:
        """Closes the adders."""
        for actor in self.actors.values():
            actor.close()


@final
class ChangingPlayer:
    """Holds the policies that an agent is judged by, each in its episodes."""

    def __init__(self, players: Mapping[str, Player]):
        """Takes them by policy id."""
        self._players = dict(players)

    def make_actor(self, key: jax.Array) -> ChangingActor:
        """Makes an actor that records nothing, for one environment."""
        keys = jax.random.split(key, len(self._players))
        pairs = zip(self._players.items(), keys, strict=True)
        return ChangingActor({policy_id: player.make_actor(each) for (policy_id, player), each in pairs})


def players_of(
    config: MultiAgentConfig,
    agent_ids: Iterable[AgentId],
    by_policy: Mapping[str, Sequence[AgentId]],
    players: Mapping[str, Player],
) -> dict[AgentId, Player | ChangingPlayer]:
    """Returns what agents are judged by, by agent id.

    Args:
        config: says whether policies change by episode.
        agent_ids: of these agents.
        by_policy: the ids of the agents that play by each policy.
        players: the policies, by policy id.
    """
    found: dict[AgentId, Player | ChangingPlayer] = {}
    for agent_id in agent_ids:
        own = {policy_id: players[policy_id] for policy_id, ids in by_policy.items() if agent_id in ids}
        found[agent_id] = ChangingPlayer(own) if changes_by_episode(config.policy_of) else next(iter(own.values()))
    return found


@final
class PoliciesByEpisode:
    """Tells the actors of a loop by which policies they play an episode, as a function of agent id and episode says."""

    def __init__(
        self, config: MultiAgentConfig, agent_specs: Mapping[AgentId, EnvironmentSpec], actors: Mapping[AgentId, Any]
    ):
        """Takes the actors; those that are no `ChangingActor` stay as they are, in the place of another."""
        self._config, self._agent_specs = config, agent_specs
        self._actors = {each: actor for each, actor in actors.items() if isinstance(actor, ChangingActor)}

    def begin(self, episode: int) -> None:
        """Tells all actors before an episode begins.

        Args:
            episode: its number, from 0.

        Raises:
            ConfigError: the function names a policy that there is not.
            SpecError: it names one whose agents see or do other things.
        """
        for agent_id, policy_id in who_plays(self._config, self._agent_specs, episode).items():
            actor = self._actors.get(agent_id)
            if actor is None:
                continue
            if policy_id not in actor.actors:
                raise SpecError(
                    f"policy_of: in episode {episode:,} it says that {agent_id!r} plays by {policy_id!r}, which is of "
                    f"agents with other specs. By its own can play: {', '.join(actor.actors)}."
                )
            actor.begin(policy_id)

    def go_on(self, episode: int) -> None:
        """Checks in a resumed run that the function says of the episode that goes on what it said before.

        Raises:
            CheckpointError: it says something else.
        """
        now = who_plays(self._config, self._agent_specs, episode)
        saved = {agent_id: actor.policy_id for agent_id, actor in self._actors.items()}
        if any(now[agent_id] != policy_id for agent_id, policy_id in saved.items()):
            raise CheckpointError(
                f"policy_of: of episode {episode:,} it says {now}, and when the run was saved it said {saved}. A run "
                "goes on with the function that it began with, which says the same in every process: hash() of a "
                "string does not. Draw by a generator that is made of the episode's number."
            )

    def num_actions(self, policy_id: str) -> int:
        """Returns how many actions were chosen by a policy so far, of all agents."""
        return sum(actor.num_actions.get(policy_id, 0) for actor in self._actors.values())

    def returns(self, record: Mapping[str, float]) -> dict[str, float]:
        """Returns the mean return of the agents by each policy, ``policy_return/POLICY``, of an episode's record."""
        found: dict[str, list[float]] = {}
        for agent_id, actor in self._actors.items():
            if actor.takes_part:
                found.setdefault(RETURN_BY + actor.policy_id, []).append(record[f"episode_return/{agent_id}"])
        return {name: float(np.mean(each)) for name, each in found.items()}

    def steps(self) -> dict[str, int]:
        """Returns how many actions were chosen by each policy so far, ``agent_steps/POLICY``."""
        policies = dict.fromkeys(policy_id for actor in self._actors.values() for policy_id in actor.actors)
        return {f"agent_steps/{policy_id}": self.num_actions(policy_id) for policy_id in policies}
