"""PettingZoo's environments, in which agents act together (`ParallelEnv`) or in turns (`AECEnv`)."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.gymnasium import make_writer, space_to_spec
from agentkit.envs.gymnasium_values import make_reader
from agentkit.envs.multi_agent.base import BetweenTurns, check_who_acts, one_reward_spec
from agentkit.envs.multi_agent.pettingzoo_loading import load, pettingzoo
from agentkit.envs.multi_agent.pettingzoo_values import (
    Parts,
    explain,
    take_by_agent,
    take_last,
    take_parallel_reset,
    take_parallel_step,
)
from agentkit.errors import SpecError
from agentkit.specs import ACTION_MASK, EnvironmentSpec
from agentkit.types import AgentId, Nest

_FIRST, _MID, _LAST = dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST


def make(name: str, seed: int = 0, **kwargs: Any) -> PettingZooEnvironment:
    """Makes an environment by its name, with agentkit's interface; see `pettingzoo_loading.load` for its arguments."""
    return adapt(load(name, **kwargs), seed)


def is_pettingzoo(environment: object) -> bool:
    """Returns whether this is an environment of PettingZoo's kinds."""
    return isinstance(environment, pettingzoo.AECEnv | pettingzoo.ParallelEnv)


def adapt(environment: Any, seed: int = 0) -> PettingZooEnvironment:
    """Returns the adapter of an environment of PettingZoo's kinds.

    Raises:
        SpecError: it is none.
    """
    if isinstance(environment, pettingzoo.ParallelEnv):
        return ParallelEnvironment(environment, seed)
    if isinstance(environment, pettingzoo.AECEnv):
        return TurnsEnvironment(environment, seed)
    raise SpecError(f"Expected a pettingzoo ParallelEnv or AECEnv, found {type(environment).__name__}.")


_InfoMask = Literal["needed", "taken", "refused", "ignored"]
"""What becomes of a mask in an agent's infos: where it is taken without being needed, none allows every action."""


class _Agent(NamedTuple):
    """Holds what is needed to pass on one agent's values: its own id, and functions for observations and actions."""

    own_id: Any
    spec: EnvironmentSpec
    read: Callable[[Any], Nest]
    write: Callable[[Nest], Any]
    info_mask: _InfoMask


def _has_mask(info: Mapping[str, Any]) -> bool:
    return info.get(ACTION_MASK) is not None


class PettingZooEnvironment(MultiAgentEnvironment):
    """Gives an environment of PettingZoo agentkit's interface; see `core.MultiAgentEnvironment`.

    ``terminated`` becomes LAST with discount 0, ``truncated`` alone LAST with discount 1. An agent that has an
    ``action_mask`` in its infos at the first reset, and none in its observations, observes ``{"observation": ...,
    "action_mask": int8 [A]}``; so does one that is not to act there, where another has a mask. Ids that are no text
    become text. What is returned and was not promised is refused (see `agentkit.envs.multi_agent.pettingzoo_values`).

    Args:
        environment: a ``pettingzoo.ParallelEnv`` or ``AECEnv``, with ``possible_agents``.
        seed: seeds the first reset.

    Raises:
        SpecError: it has no ``possible_agents``, or a space without a spec.
    """

    def __init__(self, environment: Any, seed: int = 0):
        own_ids = getattr(environment, "possible_agents", None)
        if not own_ids:
            raise SpecError(
                f"{environment}: expected possible_agents, the ids of all agents that may come, found none. Set "
                "self.possible_agents in __init__."
            )
        self._environment = environment
        self._num_steps = 0  # Of this episode.
        self.reseed(seed)
        infos, to_act = self._reset()
        masked = {own_id for own_id, info in infos.items() if isinstance(info, Mapping) and _has_mask(info)}
        self._agents = {str(own_id): self._describe(own_id, masked, to_act) for own_id in own_ids}
        self._ids = {agent.own_id: agent_id for agent_id, agent in self._agents.items()}
        self._to_act: tuple[AgentId, ...] = ()
        self._in_play: set[AgentId] = set()
        self._between = {agent_id: BetweenTurns() for agent_id in self._agents}
        space = getattr(environment, "state_space", None)
        self._state_spec = None if space is None else space_to_spec(space, "state")
        self._read_state = None if space is None else make_reader(self._state_spec, "state")
        self.reseed(seed)

    @abc.abstractmethod
    def _reset(self) -> tuple[Mapping[Any, Any], Collection[Any]]:
        """Starts an episode of PettingZoo's; returns the infos by agent, and its own ids of those that are to act."""

    def _describe(self, own_id: Any, masked: Collection[Any], to_act: Collection[Any]) -> _Agent:
        """Returns an agent, given who has a mask in the infos of the first reset, and who is to act there."""
        observed, chosen = self._environment.observation_space(own_id), self._environment.action_space(own_id)
        try:
            seen, actions = space_to_spec(observed, "observation"), space_to_spec(chosen, "action")
        except SpecError as error:
            raise SpecError(f"{self._environment}, agent {own_id!r}: {error}") from error
        spec = one_reward_spec(seen, actions)
        info_mask: _InfoMask
        if not isinstance(actions, specs.DiscreteArray) or (isinstance(seen, dict) and ACTION_MASK in seen):
            info_mask = "ignored"
        elif own_id in masked:
            info_mask = "needed"
        else:  # Games in turns may have only the mask of who is to act, and others come later.
            info_mask = "taken" if masked and own_id not in to_act else "refused"
        if info_mask in ("needed", "taken"):
            mask = specs.BoundedArray((actions.num_values,), np.int8, 0, 1, ACTION_MASK)
            spec = spec._replace(observations={"observation": seen, ACTION_MASK: mask})
        return _Agent(own_id, spec, make_reader(seen), make_writer(chosen), info_mask)

    def _read(self, agent_id: AgentId, observation: Any, info: Any, *, acts: bool) -> Nest:
        """Returns an agent's observation as its spec says, with its mask; None where an agent ended without one."""
        agent = self._agents[agent_id]
        if observation is None and not acts:
            return None
        seen = agent.read(observation)
        if agent.info_mask == "ignored":
            return seen
        if agent.info_mask == "refused":
            if acts and _has_mask(info):
                raise SpecError(
                    f"infos/{ACTION_MASK}: expected none, since this agent had none at the first reset, by which its "
                    "specs are made. Give it one there, such as np.ones, where all may be chosen."
                )
            return seen
        spec, found = agent.spec.observations[ACTION_MASK], info.get(ACTION_MASK)
        if found is None and not (acts and agent.info_mask == "needed"):
            found = np.ones(spec.shape, np.int8)
        return {"observation": seen, ACTION_MASK: specs.fit_array(found, spec, f"infos/{ACTION_MASK}")}

    def _make_last(
        self, agent_id: AgentId, reward: float, terminated: bool, observation: Any, info: Any
    ) -> dm_env.TimeStep:
        """Returns the time step of an agent that has ended."""
        self._in_play.discard(agent_id)
        self._between[agent_id].add(reward, 0.0 if terminated else 1.0)
        seen = self._read(agent_id, observation, info, acts=False)
        return dm_env.TimeStep(_LAST, *self._between[agent_id].take(), seen)

    def _make_turn(self, agent_id: AgentId, reward: float, observation: Any, info: Any) -> dm_env.TimeStep:
        """Returns the time step of an agent that is to act."""
        self._between[agent_id].add(reward)
        seen = self._read(agent_id, observation, info, acts=True)
        if agent_id in self._in_play:
            return dm_env.TimeStep(_MID, *self._between[agent_id].take(), seen)
        self._in_play.add(agent_id)
        return dm_env.TimeStep(_FIRST, None, None, seen)

    def _begin(self) -> None:
        """Forgets the episode before."""
        self._num_steps = 0
        self._in_play.clear()
        self._between = {agent_id: BetweenTurns() for agent_id in self._agents}

    @contextlib.contextmanager
    def _telling(self, agent_id: AgentId | None = None) -> Iterator[None]:
        """Puts environment, step and agent in front of an error, unless it is one of the environment's own."""
        try:
            yield
        except (SpecError, TypeError, LookupError, AttributeError) as error:
            told = error if isinstance(error, SpecError) else explain(error, self._environment)
            if told is None:
                raise
            whose = "" if agent_id is None else f", agent {agent_id!r}"
            raise SpecError(f"{self._environment}, step {self._num_steps:,} of an episode{whose}: {told}") from error

    def _present(self) -> Collection[Any]:
        """Returns PettingZoo's own ids of those that are there."""
        agents: Collection[Any] | None = getattr(self._environment, "agents", None)
        if agents is None:
            raise SpecError(f"{self._environment}: expected `agents`, found none. Set self.agents in reset().")
        return agents

    def _known(self, own_id: Any) -> AgentId:
        """Returns the id of one of PettingZoo's."""
        try:
            return self._ids[own_id]
        except KeyError:
            raise SpecError(
                f"{self._environment}: agent {own_id!r} is none of its possible_agents, {list(self._ids)}. Name all "
                "that may come there."
            ) from None

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._seed: int | None = seed

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs of the ``possible_agents``."""
        return {agent_id: agent.spec for agent_id, agent in self._agents.items()}

    @property
    def pettingzoo_environment(self) -> Any:
        """Returns the environment inside."""
        return self._environment

    def state_spec(self) -> Nest | None:
        """Returns the spec of the environment's ``state_space``; None where it has none."""
        return self._state_spec

    def state(self) -> Nest:
        """Returns the environment's ``state()``."""
        return super().state() if self._read_state is None else self._read_state(self._environment.state())

    def render(self) -> np.ndarray:
        """Returns an image, uint8 ``[H, W, 3]``; the environment must be made with ``render_mode="rgb_array"``.

        Raises:
            SpecError: it draws no image.
        """
        frame: Any = None
        if getattr(self._environment, "render_mode", None) == "rgb_array":
            frame = self._environment.render()
        if not isinstance(frame, np.ndarray):
            raise SpecError(
                f"{self._environment} draws no image. Where it can, make it with render_mode='rgb_array' (--env-set "
                "render_mode=rgb_array)."
            )
        return frame

    def close(self) -> None:
        """Closes the environment inside."""
        self._environment.close()


@final
class ParallelEnvironment(PettingZooEnvironment):
    """Gives a ``pettingzoo.ParallelEnv`` agentkit's interface: all agents that are there act together."""

    def _reset(self) -> tuple[Mapping[Any, Any], Collection[Any]]:
        with self._telling():
            self._first = take_parallel_reset(self._environment.reset(seed=self._seed))
        self._seed = None
        return self._first.infos, self._present()

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        self._gone: set[AgentId] = set()  # Those that have ended and are not back.
        self._told: set[AgentId] = set()  # Of these, whose end was told of at the step before.
        self._begin()
        self._reset()
        return self._give(self._first)

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of all agents that are there."""
        check_who_acts(actions, self._to_act)
        own = {self._agents[agent_id].own_id: self._agents[agent_id].write(actions[agent_id]) for agent_id in actions}
        self._num_steps += 1
        with self._telling():
            parts = take_parallel_step(self._environment.step(own))
        return self._give(parts)

    def _give(self, parts: Parts) -> dict[AgentId, dm_env.TimeStep]:
        given, live = {}, {self._known(own_id) for own_id in self._present()}
        for agent_id, (own_id, *_) in self._agents.items():
            if agent_id in self._gone and agent_id not in live and not np.any(parts.rewards.get(own_id)):
                continue  # Away; some go on to tell that it has ended, with a reward of 0 or None.
            with self._telling(agent_id):
                seen, reward, terminated, truncated, info = parts.of(own_id, acted=agent_id in self._in_play)
                has_ended = terminated or truncated
                if has_ended and agent_id not in self._told:
                    given[agent_id] = self._make_last(agent_id, reward, terminated, seen, info)
                    self._gone.add(agent_id)
                elif agent_id in live and not has_ended:
                    self._gone.discard(agent_id)
                    given[agent_id] = self._make_turn(agent_id, reward, seen, info)
                elif agent_id in self._in_play:
                    raise SpecError(
                        "left `agents` without a termination or a truncation. Give it one of them, with its last "
                        "observation and reward, at the step at which it leaves."
                    )
                elif reward:
                    raise SpecError(
                        f"rewards: expected none of an agent that is away, found {reward:g}. Give its last one at the "
                        "step at which it ends, and a team's reward to those in `agents`. Ends reported at two steps "
                        "in a row count as one."
                    )
        self._told = {agent_id for agent_id in self._gone if parts.tell_end(self._agents[agent_id].own_id)}
        self._to_act = tuple(agent_id for agent_id, timestep in given.items() if not timestep.last())
        return given


@final
class TurnsEnvironment(PettingZooEnvironment):
    """Gives a ``pettingzoo.AECEnv`` agentkit's interface: one agent acts at a time.

    Those that have ended are heard of at once, when the environment selects them, and not as steps of their own. An
    agent's reward is what the environment has summed for it since its last turn.
    """

    def _reset(self) -> tuple[Mapping[Any, Any], Collection[Any]]:
        with self._telling():
            self._environment.reset(seed=self._seed)
            infos = take_by_agent(getattr(self._environment, "infos", None), "infos")
        self._seed = None
        return infos, (getattr(self._environment, "agent_selection", None),)

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        self._begin()
        self._reset()
        return self._give()

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the action of the agent whose turn it is."""
        check_who_acts(actions, self._to_act)
        (agent_id,) = self._to_act
        self._num_steps += 1
        with self._telling(agent_id):
            self._environment.step(self._agents[agent_id].write(actions[agent_id]))
        return self._give()

    def _give(self) -> dict[AgentId, dm_env.TimeStep]:
        given: dict[AgentId, dm_env.TimeStep] = {}
        self._to_act = ()
        while self._present():
            agent_id = self._known(getattr(self._environment, "agent_selection", None))
            with self._telling(agent_id):
                observation, reward, terminated, truncated, info = take_last(self._environment.last())
                if not (terminated or truncated):
                    self._to_act = (agent_id,)
                    given[agent_id] = self._make_turn(agent_id, reward, observation, info)
                    break
                if agent_id in given:
                    raise SpecError(
                        "has ended, was stepped with None, and is in `agents` still. Begin step() with: if "
                        "self.terminations[agent] or self.truncations[agent]: return self._was_dead_step(action)."
                    )
                given[agent_id] = self._make_last(agent_id, reward, terminated, observation, info)
                self._environment.step(None)
        if not self._to_act and self._in_play:
            raise SpecError(
                f"{self._environment}: the episode ended without a turn for {', '.join(sorted(self._in_play))} to hear "
                "of its end. An agent that has ended stays in `agents` until it has been stepped with None."
            )
        return given
