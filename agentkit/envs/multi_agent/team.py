"""A team as one agent: several agents that act together become one dm_env environment, for agents of joint items."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.multi_agent.loading import make_multi_agent
from agentkit.errors import SpecError
from agentkit.types import Nest


def make(name: str, seed: int = 0, **settings: Any) -> dm_env.Environment:
    """Makes a team of an environment of several agents by name, such as ``pettingzoo:mpe/simple_spread_v3``.

    One in JAX becomes a team in JAX, which the training on the device takes.

    Args:
        name: as `envs.make_multi_agent` takes it.
        seed: seeds everything.
        **settings: go to the environment.
    """
    made = make_multi_agent(name, seed, raw=True, **settings)
    in_jax = getattr(made, "jax_environment", None)
    if not isinstance(in_jax, JaxMultiAgentEnvironment):
        return TeamEnvironment(made)
    from agentkit.envs.jax.dm_environment import DmEnvironment  # Loads JAX.
    from agentkit.envs.jax.team import JaxTeam

    return DmEnvironment(JaxTeam(in_jax), seed)


@final
class TeamEnvironment(dm_env.Environment):
    """Makes one agent of all agents of an environment: they see, act and are rewarded together.

    An observation is one nest, which `agentkit.networks.team_of` reads (`qmix` and `mappo` learn from it)::

        {
            "agents": {id: that agent's observation, which may be a dict with an "action_mask"},
            "active": bool [N], in the order of the sorted ids: False for agents that have terminated,
            "state": the environment's state, where it has a `state_spec` (for mixers and critics, never for policies),
        }

    An action is ``{id: action}``, the reward the sum of the agents' rewards, and the episode ends with its last agent.
    An agent that terminates before the others is not active from then on: its observations are zeros (that of its last
    step is its own, where it has one), and its actions go nowhere. Where some terminate and others are truncated at the
    team's last step, the discount is 1, and those that terminated are not active: nothing is bootstrapped from them.

    Args:
        environment: of agents that all act at each step until they end.

    Raises:
        SpecError: it is of one agent. In an episode: agents take turns, come late or come back, are truncated while
            others go on, or have discounts that differ.
    """

    def __init__(self, environment: MultiAgentEnvironment):
        if not isinstance(environment, MultiAgentEnvironment):
            raise SpecError(
                f"A team needs an environment of several agents, found {type(environment).__name__}. "
                "agentkit.envs.make_multi_agent makes them, of PettingZoo's too; for one agent leave the team out."
            )
        self._environment: Any = environment
        self._specs = dict(sorted(environment.agent_specs().items()))
        self._ids = list(self._specs)
        self._has_state = environment.state_spec() is not None
        self._live: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Also before __init__ has run.
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._environment, name)
        return functools.partial(self._restore, found) if name == "restore" else found  # Of those that can be saved.

    def _restore(self, restore: Callable[[Any], dict[str, dm_env.TimeStep]], state: Any) -> dm_env.TimeStep | None:
        timesteps, self._live = restore(state), set()
        if not timesteps or any(timestep.first() for timestep in timesteps.values()):
            return self._begin(timesteps) if timesteps else None
        self._live = set(timesteps)
        return self._go_on(timesteps)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode of all agents."""
        return self._begin(self._environment.reset())

    def _begin(self, timesteps: dict[str, dm_env.TimeStep]) -> dm_env.TimeStep:
        self._check_ids(timesteps, self._ids, "at the first step")
        for agent, timestep in timesteps.items():
            if not timestep.first():
                found = timestep.step_type
                raise SpecError(f"A team begins together: expected FIRST of {agent!r} at a reset, found {found!r}.")
        self._live = set(self._ids)
        return dm_env.restart(self._observe(timesteps, self._live))

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes the actions of the agents that have not ended; after LAST it starts an episode instead."""
        if not self._live:
            return self.reset()
        return self._go_on(self._environment.step({agent: action[agent] for agent in self._ids if agent in self._live}))

    def _go_on(self, timesteps: dict[str, dm_env.TimeStep]) -> dm_env.TimeStep:
        self._check_ids(timesteps, self._live, "after all have acted")
        ended = {agent for agent, timestep in timesteps.items() if timestep.last()}
        discount = self._discount(timesteps, ended)
        reward = np.float32(sum(float(timestep.reward) for timestep in timesteps.values()))
        bootstraps = {agent for agent in timesteps if agent not in ended or timesteps[agent].discount > 0}
        observation = self._observe(timesteps, bootstraps)
        self._live -= ended
        step_type = dm_env.StepType.MID if self._live else dm_env.StepType.LAST
        return dm_env.TimeStep(step_type, reward, np.float32(discount), observation)

    def _discount(self, timesteps: dict[str, dm_env.TimeStep], ended: set[str]) -> float:
        """Returns what the team goes on with: of those that have not terminated it must be one number."""
        for agent, timestep in timesteps.items():
            if timestep.first():
                raise SpecError(f"An agent of a team may not begin within an episode; found FIRST of {agent!r}.")
            if agent in ended and timestep.discount > 0 and len(ended) < len(timesteps):
                raise SpecError(
                    f"Agents of a team are truncated together: {agent!r} was, with the discount {timestep.discount}, "
                    "while others went on, and what it would have been worth is lost. End the episode for all, or let "
                    "it terminate (discount 0)."
                )
        left = {float(t.discount) for agent, t in timesteps.items() if agent not in ended or t.discount > 0}
        if len(left) > 1:
            raise SpecError(f"A team has one discount, found {sorted(left)} at one step. Give all agents the same one.")
        return max(left, default=0.0)

    def _observe(self, timesteps: dict[str, dm_env.TimeStep], active: Iterable[str]) -> dict[str, Any]:
        given = {agent: timestep.observation for agent, timestep in timesteps.items()}
        seen = {
            agent: specs.zeros(spec.observations) if given.get(agent) is None else given[agent]
            for agent, spec in self._specs.items()
        }
        observation = {"agents": seen, "active": np.isin(self._ids, list(active))}
        return {**observation, "state": self._environment.state()} if self._has_state else observation

    def _check_ids(self, timesteps: dict[str, Any], expected: Iterable[str], when: str) -> None:
        if set(timesteps) != set(expected):
            raise SpecError(
                f"Agents of a team act together: expected a time step of {', '.join(sorted(expected))} {when}, found "
                f"{', '.join(sorted(timesteps)) or 'none'}. Agents that take turns, or that come and go, learn apart."
            )

    def observation_spec(self) -> dict[str, Any]:
        """Returns the spec of the nest that the class describes."""
        active = specs.Array((len(self._ids),), bool, "active")
        spec = {"agents": {agent: spec.observations for agent, spec in self._specs.items()}, "active": active}
        return {**spec, "state": self._environment.state_spec()} if self._has_state else spec

    def action_spec(self) -> dict[str, Any]:
        """Returns the agents' specs by id."""
        return {agent: spec.actions for agent, spec in self._specs.items()}

    def reward_spec(self) -> specs.Array:
        """Returns float32 ``[]``."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[]`` in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")
