"""The loop in which several actors, one of each agent id, meet one environment.

It is beside `environment_loop.EnvironmentLoop`, over the same actors and adders: each of them sees the stream of one
agent, as if it were alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import dm_env
import numpy as np
import tree

from agentkit import nests, specs
from agentkit.core import Actor, MultiAgentEnvironment
from agentkit.counting import Counter
from agentkit.errors import CheckpointError, ConfigError, NonFiniteError, SpecError
from agentkit.types import AgentId, Nest

Log = Callable[[dict[str, float]], None]
Check = Callable[[dm_env.TimeStep, Nest, int], None]
"""See `environment_loop.Check`."""


class _Turn(NamedTuple):
    """Holds an agent's newest turn: what it saw, and what it did once it has acted."""

    observation: Nest
    action: Nest = None


@final
class MultiAgentLoop:
    """Runs an environment of several agents with an actor for each id.

    A step is one of the environment: all that are to act do so. An agent's action and the time step that follows it are
    recorded when it comes, be that after others' turns. What `core.MultiAgentEnvironment` promises is checked.

    Attributes:
        resumable: True if `save` and `restore` put the environment back in mid-episode.
        num_steps: so far, of the environment or, with `count_agents`, of all agents; those of the unfinished episode
            are included.
        num_agent_steps: actions so far, of all agents.
        num_lost: agents that ended before they could act; their rewards count in returns, and nobody learned from them.
        num_cut: episodes that `max_episode_steps` has ended.
    """

    def __init__(
        self,
        environment: MultiAgentEnvironment,
        actors: Mapping[AgentId, Actor],
        *,
        counter: Counter | None = None,
        log: Log | None = None,
        checks: Mapping[AgentId, Check] | None = None,
        max_episode_steps: int | None = None,
        count_agents: bool = False,
    ):
        """Makes a loop.

        Args:
            environment: of several agents.
            actors: for one environment, unbatched; one for each id that may come.
            counter: incremented by ``steps`` and ``episodes`` when an episode ends.
            log: called with each finished episode's record: the counts, ``agent_steps``, ``episode_return`` (of all
                agents), ``episode_return/ID`` of each, ``episode_length``, ``agents_lost`` (how many times an agent
                ended in it before it could act) and ``steps_per_second``.
            checks: refuse time steps, before anyone else sees them; None takes them as they come.
            max_episode_steps: ends an episode of an evaluation after so many steps; None for no limit. Nobody learns
                of such an end.
            count_agents: whether a step, where steps are counted, is an agent's action, and not one of the environment.

        Raises:
            ConfigError: there are other actors than ids.
        """
        self._specs = environment.agent_specs()
        if self._specs.keys() != actors.keys():
            raise ConfigError(
                f"Expected an actor for each of {', '.join(self._specs)}; found them for {', '.join(actors) or 'none'}."
            )
        self._environment: Any = environment
        self._actors = dict(actors)
        self._counter = counter or Counter()
        self._log = log
        self._checks = checks or {}
        self._max_episode_steps = max_episode_steps
        self._count_agents = count_agents
        self._masks = {agent_id: _mask_leaves(spec.observations) for agent_id, spec in self._specs.items()}
        self.resumable = bool(getattr(environment, "resumable", False))
        self.num_steps = self.num_agent_steps = self.num_lost = self.num_cut = 0
        self._forget()

    def _forget(self) -> None:
        """Sets what is kept of an unfinished episode, of which there is none yet."""
        self._turns: dict[AgentId, _Turn] = {}
        self._acting: tuple[AgentId, ...] = ()
        self._returns = dict.fromkeys(self._specs, 0.0)
        self._length = self._counted = self._lost = 0
        self._timed_from = time.monotonic(), self._length

    @property
    def beginning(self) -> list[int]:
        """Returns the numbers of the environments in which the next `step` begins an episode: 0, or none."""
        return [] if self._acting else [0]

    def step(self) -> dict[str, float] | None:
        """Takes one step, resetting first where needed; returns a finished episode's record, or None."""
        seen = self.begin_step()
        return self.end_step({agent_id: self.choose(agent_id, observation) for agent_id, observation in seen.items()})

    def begin_step(self) -> dict[AgentId, Nest]:
        """Resets where needed, and returns what those see who are to act, by id."""
        if not self._acting:
            self._forget()
            self._take(self._environment.reset())
            if not self._acting:
                raise SpecError("The environment began an episode in which nobody is to act. Let somebody act first.")
        return {agent_id: self._turns[agent_id].observation for agent_id in self._acting}

    def choose(self, agent_id: AgentId, observation: Nest) -> Nest:
        """Returns the action of an agent that is to act, by its actor."""
        return self._actors[agent_id].select_action(observation)

    def end_step(self, actions: Mapping[AgentId, Nest]) -> dict[str, float] | None:
        """Takes the actions of those of `begin_step`; returns a finished episode's record, or None."""
        for agent_id, action in actions.items():
            self._turns[agent_id] = self._turns[agent_id]._replace(action=action)
        counted = len(actions) if self._count_agents else 1
        self.num_steps += counted
        self._counted += counted
        self._length += 1
        self.num_agent_steps += len(actions)
        self._take(self._environment.step(actions))
        if self._length == self._max_episode_steps and self._acting:
            self.num_cut += 1
            return self._finish()
        if self._acting:
            return None
        if self._turns:
            raise SpecError(
                f"At step {self.num_steps:,} the episode ended without a LAST time step of {', '.join(self._turns)}. "
                "Each agent that has begun needs one, with its last reward (core.MultiAgentEnvironment, rule 2)."
            )
        return self._finish()

    def run(self, *, num_episodes: int, stop: Callable[[], bool] = lambda: False) -> list[dict[str, float]]:
        """Acts until so many episodes have ended, or until `stop`, which is asked before each step, says so."""
        records: list[dict[str, float]] = []
        while len(records) < num_episodes and not stop():
            if (record := self.step()) is not None:
                records.append(record)
        return records

    def _take(self, timesteps: Mapping[AgentId, dm_env.TimeStep]) -> None:
        """Records what the environment gave, and notes who is to act."""
        for agent_id, timestep in timesteps.items():
            if agent_id not in self._specs:
                raise SpecError(
                    f"At step {self.num_steps:,} the environment gave a time step of {agent_id!r}, of whom "
                    f"agent_specs() does not know; it has {', '.join(self._specs)}."
                )
            turn = self._turns.get(agent_id)
            timestep = self._checked(agent_id, timestep, turn)
            if timestep.first():
                self._actors[agent_id].observe_first(timestep)
            else:
                self._returns[agent_id] += sum(float(np.sum(leaf)) for leaf in tree.flatten(timestep.reward))
                if turn is None:  # It came (back) and ended at once: a LAST too many would look the same.
                    self.num_lost += 1
                    self._lost += 1
                else:
                    self._actors[agent_id].observe(turn.action, timestep)
            if timestep.last():
                self._turns.pop(agent_id, None)
            else:
                self._turns[agent_id] = _Turn(timestep.observation)
        self._acting = tuple(agent_id for agent_id, timestep in timesteps.items() if not timestep.last())

    def _checked(self, agent_id: AgentId, timestep: dm_env.TimeStep, turn: _Turn | None) -> dm_env.TimeStep:
        """Returns a time step with an observation; refuses one that breaks a rule of the contract."""
        if timestep.observation is None:
            timestep = self._with_observation(agent_id, timestep, turn)
        if turn is None and timestep.mid():
            raise self._broken(agent_id, "found MID as its first time step, expected FIRST")
        if turn is not None and timestep.first():
            raise self._broken(agent_id, "found FIRST although it has not ended, expected MID or LAST")
        if timestep.first() and any(leaf is not None and np.any(leaf) for leaf in tree.flatten(timestep.reward)):
            raise self._broken(
                agent_id,
                f"found FIRST with the reward {timestep.reward}, from which nobody would learn; expected None. "
                "Add what falls before an agent's first turn to the reward of its first step",
            )
        if not timestep.last():
            leaves = tree.flatten(timestep.observation) if self._masks[agent_id] else ()
            if any(not np.any(leaves[i]) for i in self._masks[agent_id]):
                raise self._broken(agent_id, "found an action_mask that allows nothing, although it is to act")
        check = self._checks.get(agent_id)
        if check is not None:
            try:
                check(timestep, None if turn is None else turn.action, self.num_steps)
            except (SpecError, NonFiniteError) as error:
                raise type(error)(f"Agent {agent_id!r}: {error}") from error
        return timestep

    def _with_observation(self, agent_id: AgentId, timestep: dm_env.TimeStep, turn: _Turn | None) -> dm_env.TimeStep:
        """Fills in the observation of an agent that terminated without one, which no value is taken of."""
        if not timestep.last() or any(np.any(leaf) for leaf in tree.flatten(timestep.discount)):
            raise self._broken(
                agent_id, "found no observation (None), which only an agent that terminated (discount 0) may lack"
            )
        seen = specs.zeros(self._specs[agent_id].observations) if turn is None else turn.observation
        return timestep._replace(observation=seen)

    def _broken(self, agent_id: AgentId, what: str) -> SpecError:
        return SpecError(f"At step {self.num_steps:,}, of agent {agent_id!r}: {what} (core.MultiAgentEnvironment).")

    def _finish(self) -> dict[str, float]:
        counts = self._counter.increment(steps=self._counted, episodes=1)
        start, before = self._timed_from
        seconds = max(time.monotonic() - start, 1e-9)
        record: dict[str, float] = {
            **counts,
            "agent_steps": self.num_agent_steps,
            "episode_return": sum(self._returns.values()),
            **{f"episode_return/{agent_id}": value for agent_id, value in self._returns.items()},
            "episode_length": self._length,
            "agents_lost": self._lost,
            "steps_per_second": (self._length - before) / seconds,
        }
        self._forget()
        if self._log is not None:
            self._log(record)
        return record

    def save(self) -> dict[str, Any]:
        """Returns the state of the loop and its environment, in mid-episode too; not the actors'."""
        turns = {
            agent_id: {
                "observation": nests.number_leaves(turn.observation),
                "action": None if turn.action is None else nests.number_leaves(turn.action),
            }
            for agent_id, turn in self._turns.items()
        }
        return {
            "num_steps": self.num_steps,
            "num_agent_steps": self.num_agent_steps,
            "num_lost": self.num_lost,
            "turns": turns,
            "acting": np.array([list(self._specs).index(agent_id) for agent_id in self._acting], np.int64),
            "returns": dict(self._returns),
            "length": self._length,
            "counted": self._counted,
            "lost": self._lost,
            "environment": self._environment.save(),
        }

    def restore(self, state: dict[str, Any], mid_episode: bool = True) -> None:
        """Restores the state that `save` returned; the actors and their adders are restored beside it.

        With `mid_episode` False the unfinished episode is dropped, and the next step starts another one.

        Raises:
            CheckpointError: it is of other agents.
        """
        if state["returns"].keys() != self._specs.keys():
            raise CheckpointError(
                f"The checkpoint is of the agents {', '.join(state['returns'])}; found {', '.join(self._specs)}."
            )
        self._forget()
        self.num_steps, self.num_agent_steps = int(state["num_steps"]), int(state["num_agent_steps"])
        self.num_lost = int(state["num_lost"])
        self._environment.restore(state["environment"])
        if not mid_episode:
            self._counter.increment(steps=int(state.get("counted", state["length"])))
            return
        for agent_id, turn in state["turns"].items():
            spec = self._specs[agent_id]
            action = turn["action"]
            self._turns[agent_id] = _Turn(
                nests.restore_from_numbers(turn["observation"], spec.observations, "observation"),
                None if action is None else nests.restore_from_numbers(action, spec.actions, "action"),
            )
        ids = list(self._specs)
        self._acting = tuple(ids[number] for number in state["acting"].tolist())
        self._returns = {agent_id: float(value) for agent_id, value in state["returns"].items()}
        self._length, self._counted = int(state["length"]), int(state.get("counted", state["length"]))
        self._lost = int(state.get("lost", 0))
        self._timed_from = time.monotonic(), self._length  # Earlier steps took time elsewhere.


def _mask_leaves(observations: Nest) -> list[int]:
    """Returns which leaves of an observation, in flattening order, are action masks."""
    paths = [path for path, _ in tree.flatten_with_path(observations)]
    return [i for i, path in enumerate(paths) if path and path[-1] == specs.ACTION_MASK]
