"""Says at the start of each episode by which policies its agents play."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from agentkit.errors import CheckpointError, SpecError
from agentkit.experiment.multi_agent.assigning.changing import ChangingActor, ChangingPlayer
from agentkit.experiment.multi_agent.assigning.who_plays import who_plays
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.experiment.multi_agent.config import MultiAgentConfig, changes_by_episode
from agentkit.experiment.multi_agent.players import Player
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId

RETURN_BY = "policy_return/"
"""Of a record: before a policy id, the name of the mean return of the agents that have played by it."""
ACTIONS_BY = "agent_steps/"
"""Of a record, or of what a program counts: before a policy id, the name of the actions that it has chosen."""


class Place(NamedTuple):
    """Says which of a program's episodes are an actor's: of each block of as many as there are actors, one.

    It is another one in each block, or a function of odd and even numbers would say the same to an actor at all times.

    Attributes:
        actor_id: the actor's number, from 0.
        num_actors: that share the episodes.
        num_begun: episodes that each of them has had, when this one begins.
    """

    actor_id: int = 0
    num_actors: int = 1
    num_begun: int = 0

    def episode(self, count: int) -> int:
        """Returns the number of the episode that the actor begins after so many others."""
        return count * self.num_actors + (self.actor_id + count) % self.num_actors


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


def actors_of(config: MultiAgentConfig, made: Mapping[AgentId, Mapping[str, Any]]) -> dict[AgentId, Any]:
    """Returns the actor of each agent, which plays by another policy in each episode where the run says so.

    Args:
        config: says it.
        made: by agent id, actors by policy id: of one environment, or of N.
    """
    if changes_by_episode(config.policy_of):
        return {agent_id: ChangingActor(own, config.num_envs) for agent_id, own in made.items()}
    return {agent_id: next(iter(own.values())) for agent_id, own in made.items()}


@final
class PoliciesByEpisode:
    """Tells the actors of a loop by which policies they play an episode, as a function of agent id and episode says.

    Attributes:
        num_begun: episodes so far, of all environments.
        episodes: the numbers of those that go on, by environment.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        agent_specs: Mapping[AgentId, EnvironmentSpec],
        actors: Mapping[AgentId, Any],
        place: Place | None = None,
    ):
        """Takes the actors; those that are no `ChangingActor` stay as they are, in the place of another.

        Args:
            config: has the function.
            agent_specs: of the environment.
            actors: by agent id.
            place: of these among a program's actors; None for one process.
        """
        self._config, self._agent_specs, self._place = config, agent_specs, place or Place()
        self._actors = {each: actor for each, actor in actors.items() if isinstance(actor, ChangingActor)}
        self.num_begun = self._place.num_begun
        self.episodes: dict[int, int] = {}
        self._chosen_before: dict[str, int] = {}  # By policy id, when the run was launched.

    def begin_next(self, numbers: Sequence[int]) -> None:
        """Begins the next episode in the environment of each of these numbers; see `begin`."""
        for number in numbers:
            self.begin(self._place.episode(self.num_begun), number)
            self.num_begun += 1

    def begin(self, episode: int, number: int = 0) -> None:
        """Tells all actors before an episode begins.

        Args:
            episode: its number, from 0.
            number: of its environment.

        Raises:
            ConfigError: the function names a policy that there is not.
            SpecError: it names one whose agents see or do other things.
        """
        self.episodes[number] = episode
        for agent_id, policy_id in who_plays(self._config, self._agent_specs, episode).items():
            actor = self._actors.get(agent_id)
            if actor is None:
                continue
            if policy_id not in actor.actors:
                raise SpecError(
                    f"policy_of: in episode {episode:,} it says that {agent_id!r} plays by {policy_id!r}, which is of "
                    f"agents with other specs. By its own can play: {', '.join(actor.actors)}."
                )
            actor.begin(policy_id, number)

    def num_actions(self, policy_id: str) -> int:
        """Returns how many actions were chosen by a policy so far, of all agents."""
        return self._chosen_here(policy_id) + self._chosen_before.get(policy_id, 0)

    def _chosen_here(self, policy_id: str) -> int:
        return sum(actor.num_actions.get(policy_id, 0) for actor in self._actors.values())

    def returns(self, record: Mapping[str, float], number: int = 0) -> dict[str, float]:
        """Returns the mean return of the agents by each policy, ``policy_return/POLICY``, of an episode's record."""
        found: dict[str, list[float]] = {}
        for agent_id, actor in self._actors.items():
            if actor.takes_part[number]:
                found.setdefault(RETURN_BY + actor.policy_ids[number], []).append(record[f"episode_return/{agent_id}"])
        return {name: float(np.mean(each)) for name, each in found.items()}

    def steps(self) -> dict[str, int]:
        """Returns how many actions were chosen by each policy so far, ``agent_steps/POLICY``."""
        policies = dict.fromkeys(policy_id for actor in self._actors.values() for policy_id in actor.actors)
        return {ACTIONS_BY + policy_id: self.num_actions(policy_id) for policy_id in policies}

    def save(self) -> dict[str, Any]:
        """Returns the numbers of the episodes, and the actions by policy; who plays by which, the actors save."""
        return {
            "episodes": {str(number): episode for number, episode in self.episodes.items()},
            "totals": self.steps(),
        }

    def restore(self, state: Mapping[str, Any], num_ended: int, beginning: Sequence[int]) -> None:
        """Takes back what `save` returned, after the actors.

        Args:
            state: see there; of a launched program, the totals that it has counted.
            num_ended: episodes so far.
            beginning: the numbers of the environments in which none goes on.

        Raises:
            CheckpointError: the function says of an episode that goes on something else than before.
        """
        for name, total in state["totals"].items():
            policy_id = name.removeprefix(ACTIONS_BY)
            self._chosen_before[policy_id] = int(total) - self._chosen_here(policy_id)
        actors = list(self._actors.values())
        going_on = [number for number in range(len(actors[0].policy_ids)) if number not in beginning]
        self.num_begun = num_ended + len(going_on)
        for number in going_on:
            self.episodes[number] = int(state["episodes"][str(number)])
            self._check_as_before(self.episodes[number], number)

    def _check_as_before(self, episode: int, number: int) -> None:
        now = who_plays(self._config, self._agent_specs, episode)
        saved = {agent_id: actor.policy_ids[number] for agent_id, actor in self._actors.items()}
        if any(now[agent_id] != policy_id for agent_id, policy_id in saved.items()):
            raise CheckpointError(
                f"policy_of: of episode {episode:,} it says {now}, and when the run was saved it said {saved}. A run "
                "goes on with the function that it began with, which says the same in every process: hash() of a "
                "string does not. Draw by a generator that is made of the episode's number."
            )


def find_by_episode(
    config: MultiAgentConfig,
    agent_specs: Mapping[AgentId, EnvironmentSpec],
    actors: Mapping[AgentId, Any],
    place: Place | None = None,
) -> PoliciesByEpisode | None:
    """Makes a `PoliciesByEpisode`; returns None where who plays by what is so for the whole run."""
    return PoliciesByEpisode(config, agent_specs, actors, place) if changes_by_episode(config.policy_of) else None


@final
class LoopByEpisode:
    """Runs a loop of several agents, who are told at the start of each episode by which policies they play it."""

    def __init__(self, loop: MultiAgentLoop | BatchedMultiAgentLoop, by_episode: PoliciesByEpisode):
        """Takes the loop, and who tells its agents."""
        self._loop, self._by_episode = loop, by_episode

    @property
    def num_steps(self) -> int:
        """Counts as the loop does."""
        return self._loop.num_steps

    def step(self) -> Any:
        """Takes a step, as the loop does; begins episodes."""
        self._by_episode.begin_next(self._loop.beginning)
        return self._loop.step()
