"""The base of agentkit's own environments of several agents, and the shortest way to write a new one."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.errors import SpecError
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Nest

_FIRST, _MID, _LAST = dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST


@final
class BetweenTurns:
    """Adds up what an agent gets from one of its turns to the next: r_1 + d_1 r_2 + ..., and the discounts' product.

    >>> between = BetweenTurns()
    >>> between.add(1.0, discount=0.5)
    >>> between.add(4.0)
    >>> between.take()
    (3.0, 0.5)
    >>> between.take()
    (0.0, 1.0)
    """

    def __init__(self) -> None:
        self._reward, self._discount = 0.0, 1.0

    def add(self, reward: float, discount: float = 1.0) -> None:
        """Adds a reward, and the environment's discount of what comes after it."""
        self._reward += self._discount * reward
        self._discount *= discount

    def take(self) -> tuple[float, float]:
        """Returns the one step's reward and discount, and begins the next."""
        taken = self._reward, self._discount
        self._reward, self._discount = 0.0, 1.0
        return taken


class TurnEnvironment(MultiAgentEnvironment):
    """Keeps the books of several agents: who is in play, what fell between their turns, who has ended and how.

    A subclass writes `_start`, `_advance`, `_acting` and `_observe`, and calls `_reward` and `_end` in the first two.
    An agent that has ended is given nothing more, until it acts again or `_come_back` says that it is there.
    Randomness comes from `self._rng` only, and `_start` sets everything that `_advance` reads: then an episode depends
    on its seed and its actions alone, which is what makes it resumable.

    Args:
        agent_specs: of each agent that may come, by id.
        seed: seeds `self._rng`.
    """

    def __init__(self, agent_specs: Mapping[AgentId, EnvironmentSpec], seed: int = 0):
        self._specs = dict(agent_specs)
        self._in_play: set[AgentId] = set()
        self._to_act: tuple[AgentId, ...] = ()
        self.reseed(seed)

    @abc.abstractmethod
    def _start(self) -> None:
        """Begins an episode."""

    @abc.abstractmethod
    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        """Takes the actions of those that are to act."""

    @abc.abstractmethod
    def _acting(self) -> Iterable[AgentId]:
        """Returns who acts next; nobody where the episode is over."""

    @abc.abstractmethod
    def _observe(self, agent_id: AgentId) -> Nest:
        """Returns an agent's observation."""

    def _reward(self, agent_id: AgentId, reward: float, discount: float = 1.0) -> None:
        """Gives an agent a reward, at its turn or between two of them; the last one comes before its `_end`.

        Raises:
            SpecError: the agent has ended in this episode, and has not come back.
        """
        if agent_id in self._gone:
            raise SpecError(
                f"{agent_id!r} has ended in this episode, and its reward of {reward} would be lost: give its last one "
                "before its _end. If it is there again, call its _come_back first."
            )
        self._between.setdefault(agent_id, BetweenTurns()).add(reward, discount)

    def _end(self, agent_id: AgentId, observation: Nest, *, terminated: bool = True) -> None:
        """Ends an agent, whose last reward has been given; not `terminated` is cut off.

        Raises:
            SpecError: the agent has ended in this episode, and has not come back.
        """
        if agent_id in self._gone:
            raise SpecError(
                f"{agent_id!r} has ended in this episode already. If it is there again, call its _come_back first."
            )
        self._gone.add(agent_id)
        self._between.setdefault(agent_id, BetweenTurns()).add(0.0, 0.0 if terminated else 1.0)
        self._ended[agent_id] = observation

    def _come_back(self, agent_id: AgentId) -> None:
        """Notes that an agent is there (again), and may be given rewards, or end, before its first turn.

        One that comes back by acting needs no such call.

        Raises:
            SpecError: the agent has ended at this very step.
        """
        if agent_id in self._ended:
            raise _too_soon(agent_id, "is to come back")
        self._gone.discard(agent_id)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._rng = np.random.default_rng(seed)

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs of each agent that may ever come, by id."""
        return self._specs

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        self._in_play = set()
        self._between: dict[AgentId, BetweenTurns] = {}
        self._ended: dict[AgentId, Nest] = {}
        self._gone: set[AgentId] = set()  # Those that have ended, and are not back.
        self._start()
        return self._hand_out()

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act.

        Raises:
            SpecError: there are others, or fewer.
        """
        check_who_acts(actions, self._to_act)
        self._ended = {}
        self._advance(actions)
        return self._hand_out()

    def _hand_out(self) -> dict[AgentId, dm_env.TimeStep]:
        given = {}
        for agent_id, observation in self._ended.items():
            given[agent_id] = dm_env.TimeStep(_LAST, *self._between.pop(agent_id).take(), observation)
            self._in_play.discard(agent_id)
        self._to_act = tuple(self._acting())
        for agent_id in self._to_act:
            if agent_id in given:
                raise _too_soon(agent_id, "is to act")
            if agent_id in self._in_play:
                reward, discount = self._between.setdefault(agent_id, BetweenTurns()).take()
                given[agent_id] = dm_env.TimeStep(_MID, reward, discount, self._observe(agent_id))
            else:
                given[agent_id] = dm_env.TimeStep(_FIRST, None, None, self._observe(agent_id))
                self._in_play.add(agent_id)
                self._gone.discard(agent_id)
        if not self._to_act:
            self._check_all_was_given()
        return given

    def _check_all_was_given(self) -> None:
        """Refuses rewards that are left once the episode is over."""
        for agent_id, between in self._between.items():
            reward, _ = between.take()
            if reward:
                raise SpecError(
                    f"The episode is over, and {agent_id!r} has not got its reward of {reward}: give each agent "
                    "that is in play, or was given a reward, its _end."
                )


def _too_soon(agent_id: AgentId, what: str) -> SpecError:
    return SpecError(f"{agent_id!r} has just ended and {what}: it can come back at a later step only.")


def check_who_acts(actions: Mapping[AgentId, Nest], expected: Iterable[AgentId]) -> None:
    """Refuses actions of others than those who are to act.

    Raises:
        SpecError: it names both.
    """
    if set(actions) != set(expected):
        whom = ", ".join(expected) or "nobody (the episode is over: call reset)"
        raise SpecError(f"Expected the actions of {whom}; found those of {', '.join(actions) or 'nobody'}.")


def one_reward_spec(observations: Nest, actions: Nest) -> EnvironmentSpec:
    """Returns the spec of an agent with one reward and a discount in [0, 1], as dm_env has them."""
    return EnvironmentSpec(
        observations=observations,
        actions=actions,
        rewards=specs.Array((), float, "reward"),
        discounts=specs.BoundedArray((), float, 0.0, 1.0, "discount"),
    )
