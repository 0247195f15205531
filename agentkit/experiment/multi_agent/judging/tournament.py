"""Plays a run's newest policies, those of its pool and others against one another: a table of wins, with Elo."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from agentkit.errors import ConfigError, says_what_was_meant
from agentkit.experiment.evaluation.judging import check_options
from agentkit.experiment.multi_agent.assigning.who_plays import who_plays
from agentkit.experiment.multi_agent.config import RANDOM, Frozen, MultiAgentConfig, changes_by_episode, read_to_judge
from agentkit.experiment.multi_agent.judging.evaluation import EVALUATION_FIELDS, MultiAgentEvaluator
from agentkit.experiment.multi_agent.loading import (
    Saved,
    find_policies,
    load_opponent,
    load_players,
    read_saved,
    specs_of,
)
from agentkit.experiment.multi_agent.players import Player
from agentkit.experiment.multi_agent.pools import read_pool, score_of
from agentkit.types import AgentId

MEAN_ELO = 1_500.0
"""The mean rating: only differences say something."""

NEWEST = "newest"


@final
@dataclasses.dataclass(frozen=True)
class Tournament:
    """Holds how each of P players did against each other one.

    Attributes:
        players: their names.
        games: that were played, float64 ``[P, P]``.
        wins: of the player of the row against that of the column, float64 ``[P, P]``.
        draws: likewise.
        elo: of each, float64 ``[P]``; see `elo_of`.
    """

    players: tuple[str, ...]
    games: np.ndarray
    wins: np.ndarray
    draws: np.ndarray
    elo: np.ndarray

    def __str__(self) -> str:
        """Returns the table, the best player first."""
        games, wins, draws = (table.sum(axis=1) for table in (self.games, self.wins, self.draws))
        width = max(map(len, (*self.players, "player")))
        lines = [f"{'player':<{width}}    Elo  games   wins  draws  losses"]
        for i in np.argsort(-self.elo, kind="stable"):
            shares = f"{wins[i] / games[i]:>6.1%} {draws[i] / games[i]:>6.1%} {1 - (wins + draws)[i] / games[i]:>7.1%}"
            lines.append(f"{self.players[i]:<{width}}  {self.elo[i]:>5.0f}  {games[i]:>5.0f} {shares}")
        return "\n".join(lines)


def elo_of(scores: np.ndarray, games: np.ndarray) -> np.ndarray:
    """Returns Elo ratings ``[P]`` of a mean of 1,500: those under which the games are likeliest.

    A player rated 400 above another is expected to win 10 games for each that it loses (the Bradley-Terry model, fitted
    as in Hunter 2004, "MM algorithms for generalized Bradley-Terry models"). One draw more than there was, of each pair
    that has met, keeps the ratings of those that won or lost all games finite.

    Args:
        scores: wins and half of the draws of the row's player against the column's, ``[P, P]``.
        games: between them, ``[P, P]``.

    >>> elo_of(np.array([[0.0, 9.5], [0.5, 0.0]]), np.array([[0.0, 10.0], [10.0, 0.0]])).round()
    array([1700., 1300.])
    """
    met = (games > 0).astype(np.float64)
    scores, games = scores + 0.5 * met, games + met
    strengths = np.ones(len(games))
    for _ in range(10_000):
        new = scores.sum(axis=1) / (games / (strengths[:, None] + strengths[None, :])).sum(axis=1)
        new /= np.exp(np.log(new).mean())
        done, strengths = np.allclose(new, strengths, rtol=1e-9), new
        if done:
            break
    found: np.ndarray = MEAN_ELO + 400.0 * np.log10(strengths)
    return found


@says_what_was_meant
def play_tournament(
    run: str | pathlib.Path,
    num_episodes: int = 10,
    *,
    checkpoint: str | int = NEWEST,
    others: Mapping[str, Frozen | str] | None = None,
    imports: Sequence[str] = (),
    **changes: Any,
) -> Tournament:
    """Plays the newest policies of a run, those of its pool, chance and others, each against each, on either side.

    A player takes one agent's place and another all other places, so that of two agents each pair plays from both
    sides. The higher return wins. Agents whose policy does not learn play as in training.

    Args:
        run: the folder of a run of several agents.
        num_episodes: of each pair, for each place; at least 1. Without chance in the game or in a policy all of these
            are copies of one game, which Elo takes for so many: let the game begin with `random_moves`.
        checkpoint: "newest", or a step.
        others: players by name: a `Frozen` policy of another run or a file; "random" plays always.
        imports: see `experiment.read_config`.
        **changes: see `evaluate_multi_agent`.

    Raises:
        UnknownNameError: an argument that there is not.
        ConfigError: no such run or checkpoint; or fewer than two agents have policies that learn, or these change by
            episode.
    """
    if "opponents" in changes:
        raise ConfigError("opponents: agentkit.play_tournament calls them 'others', players by name.")
    arguments = (*EVALUATION_FIELDS, "checkpoint", "imports", "num_episodes", "others")
    check_options(changes, arguments, MultiAgentConfig, "play_tournament")
    config = read_to_judge(run, imports=imports, **changes)
    if changes_by_episode(config.policy_of):
        raise ConfigError(
            "A tournament puts players into the places of a policy's agents, which change by episode in this run "
            "(policy_of). Give evaluate the run, with opponents for some agents."
        )
    found, agent_specs = find_policies(run, checkpoint), specs_of(config)
    saved = read_saved(config, found, agent_specs)
    places = [agent_id for each in saved.values() for agent_id in each.agent_ids]
    if len(places) < 2:
        raise ConfigError(
            f"A tournament needs two agents that learn, found {', '.join(places)}. Give evaluate the run."
        )
    plays = who_plays(config, agent_specs)
    as_trained = load_players(config, run, checkpoint)
    players = {NEWEST: {agent_id: as_trained[plays[agent_id]] for agent_id in agent_specs}}
    players |= _players_of_pool(saved, found.state.get("self_play", {}).get("pools", {}))
    for name, other in {RANDOM: RANDOM, **(others or {})}.items():
        if name in players:
            raise ConfigError(f"others: {name!r} is a player of the run. Call the other one something else.")
        players[name] = {
            agent_id: load_opponent(agent_id, other, agent_specs[agent_id], imports) for agent_id in places
        }
    return _play(config, players, places, num_episodes)


def _players_of_pool(saved: Mapping[str, Saved], pools: Mapping[str, Any]) -> dict[str, dict[AgentId, Player]]:
    """Returns the players of a pool by name, the oldest first."""
    players: dict[str, dict[AgentId, Player]] = {}
    for policy_id, each in saved.items():
        for earlier in read_pool(pools.get(policy_id, {}), each.parts.update, policy_id):
            player = each.as_player(earlier.params)
            players.setdefault(f"step {earlier.step:,}", {}).update(dict.fromkeys(each.agent_ids, player))
    return players


def _play(
    config: MultiAgentConfig,
    players: Mapping[str, Mapping[AgentId, Player]],
    places: Sequence[AgentId],
    num_episodes: int,
) -> Tournament:
    names = tuple(players)
    games, wins, draws = (np.zeros((len(names), len(names))) for _ in range(3))
    with MultiAgentEvaluator(config, players[NEWEST]) as evaluator:
        # Of two agents, to take each place in turn is to change sides.
        pairs = itertools.combinations if len(places) == 2 else itertools.permutations
        for number, (i, k) in enumerate(pairs(range(len(names)), 2)):
            for place in places:
                own = {place: players[names[i]][place]}
                evaluator.players = {**players[NEWEST], **players[names[k]], **own}
                for record in evaluator.episodes(num_episodes, number):
                    others = [record[f"episode_return/{other}"] for other in places if other != place]
                    score = score_of(record[f"episode_return/{place}"], max(others))
                    games[i, k] += 1
                    games[k, i] += 1
                    wins[i, k] += score == 1.0
                    wins[k, i] += score == 0.0
                    draws[i, k] += score == 0.5
                    draws[k, i] += score == 0.5
    return Tournament(names, games, wins, draws, elo_of(wins + 0.5 * draws, games))
