"""Agents that come, wait, leave and come back at random: each case of the contract, with returns that are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import check_size, checked_action
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.types import AgentId, Nest


@final
class ComeAndGo(TurnEnvironment):
    """Lets agents come and go at random; those that are there get a reward at each tick, whether they act or wait.

    At a tick each agent that is there gets its number, and 1 more if it has just acted with action 1; then it may
    leave: terminated (with an observation or without) or cut off. One that is away may come (back), and one in eight
    of those leaves at once, with a reward of 10. About half of those that are there act at each tick, at least one.

    Observation: float32 ``[2]``, the agent's number and the ticks so far, over their largest. Actions: 0 and 1.

    Args:
        num_agents: that may come.
        max_ticks: after which everybody is cut off.
        seed: of who comes and goes.

    Attributes:
        returns: what each agent was given in this episode.
        num_lost: agents that left before they could act, in this episode.
    """

    def __init__(self, num_agents: int = 4, max_ticks: int = 30, seed: int = 0):
        check_size("num_agents", num_agents)
        check_size("max_ticks", max_ticks)
        self._ids = [f"agent_{i}" for i in range(num_agents)]
        self._max_ticks = max_ticks
        seen = specs.BoundedArray((2,), np.float32, 0.0, 1.0, "number_and_time")
        spec = one_reward_spec(seen, specs.DiscreteArray(2, np.int32, "action"))
        super().__init__(dict.fromkeys(self._ids, spec), seed)

    def _start(self) -> None:
        self._ticks = 0
        self._here: set[AgentId] = set()
        self._turns: list[AgentId] = []
        self.returns = dict.fromkeys(self._ids, 0.0)
        self.num_lost = 0
        self._come()
        self._choose()

    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        chosen = {agent_id: checked_action(action, 2) for agent_id, action in actions.items()}
        while True:  # Until somebody acts, or time is over.
            self._ticks += 1
            is_over = self._ticks >= self._max_ticks
            for number, agent_id in enumerate(self._ids):
                if agent_id in self._here:
                    self._give(agent_id, number + chosen.get(agent_id, 0))
                    if is_over or self._rng.random() < 0.15:
                        self._leave(agent_id, terminated=not is_over and self._rng.random() < 0.5)
            chosen = {}
            if not is_over:
                self._come()
            self._choose()
            if is_over or self._turns:
                return

    def _come(self) -> None:
        for agent_id in self._ids:
            if agent_id in self._here or agent_id in self._ended or self._rng.random() < 0.7:
                continue
            self._come_back(agent_id)
            if self._ticks and self._rng.random() < 0.125:
                self._give(agent_id, 10.0)
                self._end(agent_id, self._observe(agent_id))
                self.num_lost += 1
            else:
                self._here.add(agent_id)
        if not self._ticks and not self._here:
            self._here.add(self._ids[0])

    def _leave(self, agent_id: AgentId, *, terminated: bool) -> None:
        self._here.remove(agent_id)
        if agent_id in self._in_play:
            without = terminated and self._rng.random() < 0.5
            self._end(agent_id, None if without else self._observe(agent_id), terminated=terminated)
        else:
            self._end(agent_id, self._observe(agent_id), terminated=terminated)
            self.num_lost += 1

    def _give(self, agent_id: AgentId, reward: float) -> None:
        self._reward(agent_id, float(reward))
        self.returns[agent_id] += reward

    def _choose(self) -> None:
        here = sorted(self._here)
        self._turns = [agent_id for agent_id in here if self._rng.random() < 0.5] or here[:1]

    def _acting(self) -> Iterable[AgentId]:
        return self._turns

    def _observe(self, agent_id: AgentId) -> np.ndarray:
        number = self._ids.index(agent_id)
        return np.array([number / len(self._ids), self._ticks / self._max_ticks], np.float32)
