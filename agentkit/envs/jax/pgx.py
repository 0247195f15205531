"""Pgx's games of several players (Koyamada et al. 2023, 2303.17503). The one file that imports pgx."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.multi_agent_host import on_host
from agentkit.envs.jax.pooled import checked_size
from agentkit.envs.jax.time_steps import first_step_of, next_step_of
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import ConfigError, missing_extra
from agentkit.types import AgentId, Array, Nest

try:
    import pgx
except ImportError as error:
    raise missing_extra("pgx", "pgx") from error


def make(name: str, seed: int = 0, reset_pool: int | None = None, **settings: Any) -> MultiAgentEnvironment:
    """Makes one of Pgx's games, as an ordinary environment of several agents.

    Args:
        name: as Pgx has it, such as ``connect_four`` or ``go_9x9``.
        seed: of the episodes.
        reset_pool: see `base.JaxEnvironment`.
        **settings: none, since Pgx's games have none; one is refused by its name.

    Raises:
        UnknownNameError: there is no such game, or a setting was given; proposes the nearest game.
        ConfigError: it has one player.
    """
    check_settings(f"pgx:{name}", settings, ["reset_pool"])
    return on_host(Pgx(name, checked_size(reset_pool)), seed)


@final
@dataclasses.dataclass(frozen=True)
class Pgx(JaxTurnEnvironment):
    """Steps one of Pgx's games by its own functions, which reset nothing by themselves.

    Players are "player_0", "player_1" and so on; which of them begins is chance's where Pgx draws it. A game that is
    `terminated` has the discount 0, and one that is `truncated` alone 1.

    Observation: ``{"observation": float32 [...], "action_mask": bool [A]}``, what Pgx shows that player, and the moves
    that whose turn it is may make. Actions: 0 to A - 1.

    Attributes:
        name: see `make`.
        reset_pool: likewise.
    """

    name: str
    reset_pool: int | None = None

    def __post_init__(self) -> None:
        """Refuses what is no game of several players."""
        check_known("pgx", self.name, pgx.available_envs())
        if self._game.num_players < 2:
            other = "jumanji:Game2048-v1" if self.name == "2048" else "MinAtar's of gymnax, as gymnax:Breakout-MinAtar"
            raise ConfigError(f"pgx:{self.name} has one player, and pgx: is for games of several. Take {other}.")

    @functools.cached_property
    def _game(self) -> Any:
        return pgx.make(self.name)

    @functools.cached_property
    def _shapes(self) -> Any:
        """Returns the shapes of a state, and of what a player sees."""

        def begin(key: Array) -> tuple[Any, Array]:
            state = self._game.init(key)
            return state, self._game._observe(state, jnp.int32(0))

        return jax.eval_shape(begin, jax.random.PRNGKey(0))

    @functools.cached_property
    def _players(self) -> list[AgentId]:
        return [f"player_{number}" for number in range(self._game.num_players)]

    def observation_spec(self) -> dict[AgentId, Nest]:
        """Returns the spec of what Pgx shows, as float32, with the mask of the moves."""
        state, seen = self._shapes
        spec = {
            "observation": specs.Array(seen.shape, np.float32, "observation"),
            specs.ACTION_MASK: specs.Array(state.legal_action_mask.shape, bool, specs.ACTION_MASK),
        }
        return dict.fromkeys(self._players, spec)

    def action_spec(self) -> dict[AgentId, specs.DiscreteArray]:
        """Returns its moves, from 0 on."""
        (num_actions,) = self._shapes[0].legal_action_mask.shape
        return dict.fromkeys(self._players, specs.DiscreteArray(num_actions, np.int32, "action"))

    def turn(self, state: Any) -> Array:
        """Returns who is to move."""
        player: Array = state.current_player
        return player

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins a game."""
        state = self._game.init(key)
        return state, first_step_of(self._observed(state))

    def step(self, state: Any, action: dict[AgentId, Array], key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Makes the move of whose turn it is; the key is for dice and cards."""
        move = jnp.stack([action[player] for player in self._players])[state.current_player]
        state = self._game.step(state, move, key)
        rewards = {player: state.rewards[number] for number, player in enumerate(self._players)}
        return state, next_step_of(self._observed(state), rewards, state.terminated, state.truncated)

    def _observed(self, state: Any) -> dict[AgentId, Nest]:
        # Not by `observe`, which warns that it will show whose turn it is alone; the others see the end, too.
        return {
            player: {
                "observation": jnp.asarray(self._game._observe(state, jnp.int32(number)), jnp.float32),
                specs.ACTION_MASK: state.legal_action_mask,
            }
            for number, player in enumerate(self._players)
        }
