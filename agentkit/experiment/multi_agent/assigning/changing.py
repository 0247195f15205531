"""Acts for one agent by another policy in each episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env
import jax
import numpy as np
import tree

from agentkit.actors.batches import index
from agentkit.actors.random_actor import RandomActor
from agentkit.core import Actor
from agentkit.experiment.multi_agent.players import AnyPlayer, Player
from agentkit.types import Nest


@final
class ChangingActor(Actor):
    """Acts for one agent by another policy in each episode, with an actor of each.

    These have adders of their own, which see whole episodes of this agent, one after another. In N environments it acts
    in those that wait for it, as a `ReadyPolicyActor` does, with a call for each policy.

    Attributes:
        actors: by policy id.
        policy_ids: of the episode in each environment.
        takes_part: whether the agent has been there in that episode.
        num_actions: that were chosen so far, by policy id.
    """

    def __init__(self, actors: Mapping[str, AnyPlayer], num_envs: int | None = None):
        """Takes the actors by policy id, in one environment or in N."""
        self.actors: dict[str, Any] = dict(actors)  # All act in one environment, or all in N.
        self.policy_ids = [next(iter(actors))] * (num_envs or 1)
        self.takes_part = [False] * (num_envs or 1)
        self.num_actions = dict.fromkeys(actors, 0)

    def begin(self, policy_id: str, number: int = 0) -> None:
        """Plays by a policy from the next episode of an environment on."""
        self.policy_ids[number], self.takes_part[number] = policy_id, False

    def select_action(self, observation: Nest, numbers: np.ndarray | None = None) -> Nest:
        """Returns an action; of the environments of M numbers actions ``[M, ...]`` for observations ``[M, ...]``."""
        if numbers is None:
            self.num_actions[self.policy_ids[0]] += 1
            return self.actors[self.policy_ids[0]].select_action(observation)
        rows_of: dict[str, list[int]] = {}
        for row, number in enumerate(numbers.tolist()):
            rows_of.setdefault(self.policy_ids[number], []).append(row)
        chosen: list[Nest] = [None] * len(numbers)
        for policy_id, rows in rows_of.items():
            self.num_actions[policy_id] += len(rows)
            for row, action in zip(rows, _choose(self.actors[policy_id], observation, rows, numbers), strict=True):
                chosen[row] = action
        return tree.map_structure(lambda *leaves: np.stack(leaves), *chosen)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`."""
        self.takes_part[0] = True
        self.actors[self.policy_ids[0]].observe_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`."""
        self.actors[self.policy_ids[0]].observe(action, next_timestep)

    def observe_one(self, number: int, action: Nest, timestep: dm_env.TimeStep) -> None:
        """Records an action of one of N environments and the time step that followed; FIRST begins an episode."""
        self.takes_part[number] |= timestep.first()
        actor = self.actors[self.policy_ids[number]]
        if not isinstance(actor, RandomActor):
            actor.observe_one(number, action, timestep)

    def update(self, wait: bool = False) -> None:
        """See `core.Actor`."""
        for actor in self.actors.values():
            actor.update(wait)

    def save(self, mid_episode: bool = True) -> dict[str, Any]:
        """Returns the state of all actors, how often each has acted, and by which policies the episodes are played."""
        return {
            "actors": {policy_id: actor.save(mid_episode) for policy_id, actor in self.actors.items()},
            "num_actions": dict(self.num_actions),
            "policy_ids": {str(number): policy_id for number, policy_id in enumerate(self.policy_ids)},
            "takes_part": {str(number): each and mid_episode for number, each in enumerate(self.takes_part)},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        for policy_id, actor in self.actors.items():
            actor.restore(state["actors"][policy_id])
            self.num_actions[policy_id] = int(state["num_actions"][policy_id])
        if "policy_ids" not in state:  # Older checkpoints are of one environment.
            state = {"policy_ids": {"0": state["policy_id"]}, "takes_part": {"0": state["takes_part"]}}
        for number in range(len(self.policy_ids)):
            self.policy_ids[number] = str(state["policy_ids"][str(number)])
            self.takes_part[number] = bool(state["takes_part"][str(number)])

    def close(self) -> None:
        """Closes the adders."""
        for actor in self.actors.values():
            actor.close()


def _choose(actor: Any, observation: Nest, rows: list[int], numbers: np.ndarray) -> list[Nest]:
    """Returns the actions of one policy's actor in these rows of what waits, unbatched."""
    if isinstance(actor, RandomActor):
        return [actor.select_action(index(observation, row)) for row in rows]
    actions = actor.select_action(tree.map_structure(lambda leaf: leaf[rows], observation), numbers[rows])
    return [index(actions, place) for place in range(len(rows))]


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
