"""The loop in which several actors meet N environments: each acts for all that wait for it with one policy call.

It holds a `multi_agent_loop.MultiAgentLoop` for each environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import dm_env
import numpy as np
import tree

from agentkit.actors import ReadyPolicyActor
from agentkit.actors.batches import index
from agentkit.actors.random_actor import RandomActor
from agentkit.core import Actor, MultiAgentEnvironment
from agentkit.counting import Counter
from agentkit.errors import ConfigError
from agentkit.multi_agent_loop import Check, MultiAgentLoop
from agentkit.types import AgentId, Nest

if TYPE_CHECKING:  # A run in one process needs no wire.
    from agentkit.actors.remote_ready import RemoteReadyActor
    from agentkit.experiment.multi_agent.assigning.changing import ChangingActor

ManyActor: TypeAlias = "ReadyPolicyActor | RemoteReadyActor | ChangingActor | RandomActor"
"""Acts for one agent in N environments, of which some wait for it at a time."""


class Waiting(NamedTuple):
    """Holds what waits for an agent.

    Attributes:
        observations: of each environment that waits, unbatched.
        numbers: of these environments, int ``[M]``.
    """

    observations: list[Nest]
    numbers: np.ndarray

    def batch(self) -> tuple[Nest, np.ndarray]:
        """Returns the observations as one, leaves ``[M, ...]``, and the numbers."""
        return tree.map_structure(lambda *leaves: np.stack(leaves), *self.observations), self.numbers

    def some(self, rows: Sequence[int]) -> Waiting:
        """Returns those of these rows alone."""
        return Waiting([self.observations[row] for row in rows], self.numbers[list(rows)])

    def apart(self, actions: Nest) -> list[Nest]:
        """Returns actions ``[M, ...]`` unbatched."""
        return [index(actions, row) for row in range(len(self.numbers))]


@final
class BatchedMultiAgentLoop:
    """Runs N environments of several agents, each of which takes a step at a time, or begins an episode and takes one.

    Attributes:
        resumable: True if `save` and `restore` put the environments back in mid-episode.
        num_steps: of all environments so far, as `MultiAgentLoop` counts them.
        num_agent_steps: actions so far, of all agents in all environments.
    """

    def __init__(
        self,
        environments: Sequence[MultiAgentEnvironment],
        actors: Mapping[AgentId, ManyActor],
        *,
        counter: Counter | None = None,
        log: Callable[[dict[str, float], int], None] | None = None,
        checks: Mapping[AgentId, Check] | None = None,
        count_agents: bool = False,
    ):
        """Makes a loop.

        Args:
            environments: N of the same agents.
            actors: one for each id that may come, made for N environments.
            counter: see `MultiAgentLoop`; of all environments.
            log: called with the record of each episode that ends, as of `MultiAgentLoop` without ``steps_per_second``,
                and the number of its environment. ``steps`` and ``agent_steps`` are of all environments.
            checks: see `MultiAgentLoop`; of any of the environments.
            count_agents: see `MultiAgentLoop`.

        Raises:
            ConfigError: there are other actors than ids, or no environments.
        """
        if not environments:
            raise ConfigError("Expected at least one environment, found none.")
        self._actors = dict(actors)
        self._log = log
        counter = counter or Counter()  # One, or each environment would count episodes by itself.
        self._loops = [
            MultiAgentLoop(
                environment,
                {agent_id: _recorder(actor, number) for agent_id, actor in actors.items()},
                counter=counter,
                checks=checks,
                count_agents=count_agents,
            )
            for number, environment in enumerate(environments)
        ]
        self.resumable = all(loop.resumable for loop in self._loops)
        self._count_agents = count_agents
        self.num_steps = self.num_agent_steps = 0
        self._numbers: dict[AgentId, list[int]] = {}  # Of the environments in which each is to act.

    @property
    def num_lost(self) -> int:
        """Counts the agents that ended before they could act."""
        return sum(loop.num_lost for loop in self._loops)

    @property
    def beginning(self) -> list[int]:
        """Returns the numbers of the environments in which the next `step` begins an episode."""
        return [number for number, loop in enumerate(self._loops) if loop.beginning]

    def step(self) -> list[dict[str, float]] | None:
        """Takes a step in every environment; returns the records of the episodes that ended, or None."""
        seen = self.begin_step()
        return self.end_step({agent_id: self.choose(agent_id, waiting) for agent_id, waiting in seen.items()})

    def begin_step(self) -> dict[AgentId, Waiting]:
        """Resets where needed, and returns what waits for those who are to act, by id."""
        seen = [loop.begin_step() for loop in self._loops]
        found = {}
        for agent_id in self._actors:
            numbers = [number for number, observations in enumerate(seen) if agent_id in observations]
            if numbers:
                found[agent_id] = Waiting([seen[number][agent_id] for number in numbers], np.array(numbers))
        self._numbers = {agent_id: waiting.numbers.tolist() for agent_id, waiting in found.items()}
        return found

    def choose(self, agent_id: AgentId, waiting: Waiting) -> list[Nest]:
        """Returns the actions of an agent in the environments that wait for it, unbatched, by its actor."""
        return _choose(self._actors[agent_id], waiting)

    def end_step(self, chosen: Mapping[AgentId, Sequence[Nest]]) -> list[dict[str, float]] | None:
        """Takes the actions of those of `begin_step`; returns the records of the episodes that ended, or None."""
        actions: list[dict[AgentId, Nest]] = [{} for _ in self._loops]
        for agent_id, numbers in self._numbers.items():
            for number, action in zip(numbers, chosen[agent_id], strict=True):
                actions[number][agent_id] = action
        acted = sum(map(len, actions))
        self.num_agent_steps += acted
        self.num_steps += acted if self._count_agents else len(self._loops)
        ended = []
        for number, loop in enumerate(self._loops):
            record = loop.end_step(actions[number])
            if record is not None:
                del record["steps_per_second"]
                ended.append((number, record))
        for number, record in ended:
            # Not of the finished episodes alone: a resumed run cuts its log by these.
            record |= {"steps": self.num_steps, "agent_steps": self.num_agent_steps}
            if self._log is not None:
                self._log(record, number)
        return [record for _, record in ended] or None

    def save(self) -> dict[str, Any]:
        """Returns the state of the loop and its environments, in mid-episode too; not the actors'."""
        return {
            "num_steps": self.num_steps,
            "num_agent_steps": self.num_agent_steps,
            "environments": {str(number): loop.save() for number, loop in enumerate(self._loops)},
        }

    def restore(self, state: dict[str, Any], mid_episode: bool = True) -> None:
        """Restores the state that `save` returned, as `MultiAgentLoop.restore` does.

        Raises:
            CheckpointError: it is of other agents.
        """
        self.num_steps, self.num_agent_steps = int(state["num_steps"]), int(state["num_agent_steps"])
        for number, loop in enumerate(self._loops):
            loop.restore(state["environments"][str(number)], mid_episode)


def _recorder(actor: ManyActor, number: int) -> Actor:
    return actor if isinstance(actor, RandomActor) else _Recorder(actor, number)


@final
class _Recorder(Actor):
    """Stands for an agent's actor in one of the environments: tells it what is to be recorded there."""

    def __init__(self, actor: ReadyPolicyActor | RemoteReadyActor | ChangingActor, number: int):
        self._actor, self._number = actor, number

    def select_action(self, observation: Nest) -> Nest:
        return _choose(self._actor, Waiting([observation], np.array([self._number])))[0]

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._actor.observe_one(self._number, (), timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        self._actor.observe_one(self._number, action, next_timestep)

    def update(self, wait: bool = False) -> None:
        self._actor.update(wait)


def _choose(actor: ManyActor, waiting: Waiting) -> list[Nest]:
    """Returns an action for each observation, unbatched."""
    if isinstance(actor, RandomActor):
        return [actor.select_action(observation) for observation in waiting.observations]
    return waiting.apart(actor.select_action(*waiting.batch()))
