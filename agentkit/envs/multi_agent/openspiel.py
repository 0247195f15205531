"""OpenSpiel's games (Lanctot et al. 2019, 1908.09453): in turns or at once, with chance and hidden information."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from agentkit import specs
from agentkit.envs.base import checked_action
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import ConfigError, SpecError, missing_extra, unknown_name
from agentkit.types import AgentId, Nest

try:
    import pyspiel
except ImportError as error:
    raise missing_extra("open_spiel", "openspiel") from error

_TENSORS = ("information_state", "observation")


def make(name: str, seed: int = 0, *, observed: str | None = None, **settings: Any) -> OpenSpiel:
    """Makes one of OpenSpiel's games.

    Args:
        name: as OpenSpiel has it, such as ``connect_four`` or ``leduc_poker``.
        seed: of chance.
        observed: see `OpenSpiel`.
        **settings: of the game, such as ``rows=5``.

    Raises:
        UnknownNameError: there is no such game, or it takes no such setting; proposes the nearest one.
        ConfigError: OpenSpiel refuses the settings.
        SpecError: see `OpenSpiel`.
    """
    check_known("openspiel", name, pyspiel.registered_names())
    if settings:  # OpenSpiel would print its own list of them.
        taken = {kind.short_name: kind for kind in pyspiel.registered_games()}[name].parameter_specification
        check_settings(f"openspiel:{name}", settings, [*taken, "observed"])
    try:
        return OpenSpiel(pyspiel.load_game(name, settings), seed, observed)
    except pyspiel.SpielError as error:
        raise ConfigError(f"openspiel:{name}: {error}") from error


@final
class OpenSpiel(TurnEnvironment):
    """Gives a game of OpenSpiel agentkit's interface; players are "player_0", "player_1" and so on.

    Chance is drawn from the seed. A player's reward is by how much its return has grown since its last turn; all end by
    termination, and games have no time limit of their own beyond their rules.

    Observation: ``{"observation": float32 [...], "action_mask": int8 [A]}``. Actions: 0 to A - 1.

    Args:
        game: what ``pyspiel.load_game`` returns.
        seed: of chance.
        observed: which of OpenSpiel's tensors a player sees: "information_state", all that it could know so far, or
            "observation", what is to be seen now; None takes the first where the game has it.

    Raises:
        UnknownNameError: the game has no such tensor.
        SpecError: it has none, is of a mean field, or draws chance where no seed reaches it.
    """

    def __init__(self, game: Any, seed: int = 0, observed: str | None = None):
        kind = game.get_type()
        _check_kind(kind)
        has = [name for name in _TENSORS if getattr(kind, f"provides_{name}_tensor")]
        if not has:
            raise SpecError(f"openspiel:{kind.short_name} gives no tensor to observe. Choose another game.")
        if observed is not None and observed not in has:
            raise unknown_name(f"tensor of openspiel:{kind.short_name}", observed, has)
        self._game, self._num_actions = game, int(game.num_distinct_actions())
        self._tensor = f"{observed or has[0]}_tensor"
        self._shape = tuple(getattr(game, f"{self._tensor}_shape")())
        self._ids = [f"player_{number}" for number in range(game.num_players())]
        seen = {
            "observation": specs.Array(self._shape, np.float32, self._tensor),
            specs.ACTION_MASK: specs.BoundedArray((self._num_actions,), np.int8, 0, 1, specs.ACTION_MASK),
        }
        spec = one_reward_spec(seen, specs.DiscreteArray(self._num_actions, np.int32, "action"))
        super().__init__(dict.fromkeys(self._ids, spec), seed)

    def _start(self) -> None:
        self._state = self._game.new_initial_state()
        self._returns = np.zeros(len(self._ids))
        self._go_on()

    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        chosen = [pyspiel.INVALID_ACTION] * len(self._ids)
        for agent_id, given in actions.items():
            player, action = self._ids.index(agent_id), checked_action(given, self._num_actions)
            if action not in self._state.legal_actions(player):
                raise SpecError(f"{agent_id!r} took action {action}, which is not allowed; see the action_mask.")
            chosen[player] = action
        if self._state.is_simultaneous_node():
            self._state.apply_actions(chosen)
        else:
            self._state.apply_action(chosen[self._state.current_player()])
        self._go_on()

    def _go_on(self) -> None:
        """Draws what is chance's, gives the rewards, and ends all where the game is over."""
        while self._state.is_chance_node():
            outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            drawn = self._rng.choice(len(outcomes), p=np.asarray(probabilities) / np.sum(probabilities))
            self._state.apply_action(outcomes[drawn])
        returns = np.asarray(self._state.returns())
        for agent_id, reward in zip(self._ids, returns - self._returns, strict=True):
            self._reward(agent_id, float(reward))
        self._returns = returns
        if self._state.is_terminal():
            for agent_id in self._ids:
                self._end(agent_id, self._observe(agent_id))

    def _acting(self) -> Iterable[AgentId]:
        if self._state.is_terminal():
            return ()
        if self._state.is_simultaneous_node():
            return [agent_id for player, agent_id in enumerate(self._ids) if self._state.legal_actions(player)]
        return (self._ids[self._state.current_player()],)

    def _observe(self, agent_id: AgentId) -> Nest:
        player, mask = self._ids.index(agent_id), np.zeros(self._num_actions, np.int8)
        mask[self._state.legal_actions(player)] = 1
        seen = np.asarray(getattr(self._state, self._tensor)(player), np.float32)
        return {"observation": seen.reshape(self._shape), specs.ACTION_MASK: mask}


def _check_kind(kind: Any) -> None:
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise SpecError(f"openspiel:{kind.short_name} is of a mean field: its one player stands for a population.")
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        raise SpecError(
            f"openspiel:{kind.short_name} draws its chance inside, where no seed reaches it, so that episodes could "
            "not be repeated. Choose a game whose chance is explicit."
        )
