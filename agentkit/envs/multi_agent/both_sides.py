"""A game of two as one agent, which moves for whoever's turn it is: self-play for agents of one stream of moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.multi_agent.loading import make_multi_agent
from agentkit.envs.multi_agent.sides import find_spec
from agentkit.errors import SpecError
from agentkit.types import AgentId, Nest


def make(name: str, seed: int = 0, **settings: Any) -> dm_env.Environment:
    """Makes one agent of a game of two by name, such as ``agentkit:tic_tac_toe``.

    One in JAX becomes an environment in JAX, which the training on the device takes.

    Args:
        name: as `envs.make_multi_agent` takes it.
        seed: seeds everything.
        **settings: go to the environment.
    """
    made = make_multi_agent(name, seed, raw=True, **settings)
    in_jax = getattr(made, "jax_environment", None)
    if in_jax is None:
        return BothSides(made)
    if not isinstance(in_jax, JaxTurnEnvironment):
        raise SpecError(
            f"both_sides: is for games whose players move one at a time, and those of {name} act together. For them "
            "see team:, or say who plays whom: --policies shared (or each)."
        )
    from agentkit.envs.jax.both_sides import JaxBothSides  # Loads JAX.
    from agentkit.envs.jax.dm_environment import DmEnvironment

    return DmEnvironment(JaxBothSides(in_jax), seed)


@final
class BothSides(dm_env.Environment):
    """Makes one agent of the two players of a zero-sum game in turns, such as tic-tac-toe, chess or Go.

    Each time step is one move. The agent sees what the player sees whose turn it is, and the reward is that of the
    player who has moved. The discount is -1 where the other player is next: what a position is worth to one is what it
    costs the other, so that an agent's targets of rewards and values are right for both (negamax), and one policy
    learns from both sides; docs/several_agents.md names the agents whose targets have more in them. It is 0 once the
    game is over, as ever. Returns of episodes say little: who wins gets 1.

    A policy that is learned so sees and does what each player does, and plays in the game itself: see
    `MultiAgentConfig` and `Frozen`.

    Args:
        environment: of two agents, one of whom acts at a time, and who are paid at the end alone.

    Raises:
        SpecError: it has other than two agents, or they do not see and do the like. In an episode: both act at once,
            or are paid in mid-game, or one is not paid what the other pays, or who would be next sees nothing of a
            game that is cut off.
    """

    def __init__(self, environment: MultiAgentEnvironment):
        if not isinstance(environment, MultiAgentEnvironment):
            raise SpecError(
                f"both_sides: needs a game of two agents, found {type(environment).__name__}. "
                "agentkit.envs.make_multi_agent makes them, of PettingZoo's and OpenSpiel's too."
            )
        self._environment: Any = environment
        self._spec = find_spec(environment.agent_specs(), type(environment).__name__)
        self._players = set(environment.agent_specs())
        self._mover: AgentId | None = None  # None once the game is over.

    def __getattr__(self, name: str) -> Any:
        # Whoever saves this repeats the game's moves. Names of one's own are asked for before __init__ has run, too.
        if name.startswith("_") or name in ("save", "restore", "resumable"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._environment, name)

    def close(self) -> None:
        """Closes the game."""
        self._environment.close()

    def reset(self) -> dm_env.TimeStep:
        """Begins a game, and shows it to who begins."""
        timesteps = self._environment.reset()
        self._mover = _who_acts(timesteps)
        return dm_env.restart(timesteps[self._mover].observation)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Makes a move for whose turn it is; once the game is over it begins another one instead."""
        if self._mover is None:
            return self.reset()
        mover = self._mover
        timesteps = self._environment.step({mover: action})
        if all(timestep.last() for timestep in timesteps.values()):
            self._mover = None
            return self._end(timesteps, mover)
        self._mover = follows = _who_acts(timesteps)
        timestep = timesteps[follows]
        if not timestep.first() and (timestep.reward or timestep.discount != 1.0):
            raise SpecError(
                f"both_sides: is for games that pay at the end alone, and {follows!r} has the reward {timestep.reward} "
                f"and the discount {timestep.discount} in mid-game. Say who plays whom instead: --policies shared."
            )
        side = 1.0 if follows == mover else -1.0
        return dm_env.transition(np.float32(0.0), timestep.observation, np.float32(side))

    def _end(self, timesteps: Mapping[AgentId, dm_env.TimeStep], mover: AgentId) -> dm_env.TimeStep:
        """Returns the last time step: of who has moved, with what the other player sees."""
        own = timesteps[mover]
        (other,) = self._players - {mover}
        seen = timesteps[other].observation if other in timesteps else None  # Else it never had a turn.
        if other in timesteps and abs(own.reward + timesteps[other].reward) > 1e-6:
            raise SpecError(
                f"both_sides: is for zero-sum games, and at the end {mover!r} is paid {own.reward} and {other!r} "
                f"{timesteps[other].reward}. Say who plays whom instead: --policies shared (or each)."
            )
        if seen is None:
            if own.discount:  # What follows would be valued by it.
                raise SpecError(
                    f"both_sides: {type(self._environment).__name__} was cut off after a move of {mover!r}, and "
                    f"{other!r} has no last observation, by which to value what would follow. Give it a LAST with one."
                )
            seen = specs.zeros(self._spec.observations)
        return dm_env.TimeStep(dm_env.StepType.LAST, np.float32(own.reward), np.float32(0.0 - own.discount), seen)

    def observation_spec(self) -> Nest:
        """Returns the spec of what either sees."""
        return self._spec.observations

    def action_spec(self) -> Nest:
        """Returns the spec of what either does."""
        return self._spec.actions

    def reward_spec(self) -> Nest:
        """Returns float32 ``[]``."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> Nest:
        """Returns float32 ``[]`` in [-1, 1]."""
        return self._spec.discounts


def _who_acts(timesteps: Mapping[AgentId, dm_env.TimeStep]) -> AgentId:
    """Returns the only player there is a time step of.

    Raises:
        SpecError: there are more.
    """
    if len(timesteps) != 1:
        raise SpecError(
            "both_sides: is for games whose players move one at a time, and end together; found time steps of "
            f"{', '.join(timesteps)} at once. For players who act together see team:, or say who plays whom."
        )
    return next(iter(timesteps))
