"""Evaluates several agents: plays episodes with the policies to be judged by, in an environment of their own."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, final

import jax
import numpy as np

from agentkit.envs.step_check import StepCheck
from agentkit.errors import says_what_was_meant, unknown_name
from agentkit.experiment.checks.step_watch import StepWatch
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.evaluation.evaluate import (
    film_camera,
    key_of_evaluation,
    seed_of_evaluation,
    summarise,
)
from agentkit.experiment.evaluation.judging import check_num_episodes, check_options
from agentkit.experiment.multi_agent.assigning.by_episode import (
    RETURN_BY,
    PoliciesByEpisode,
    find_by_episode,
    players_of,
)
from agentkit.experiment.multi_agent.assigning.changing import ChangingPlayer
from agentkit.experiment.multi_agent.assigning.who_plays import agents_by_policy
from agentkit.experiment.multi_agent.config import Frozen, MultiAgentConfig, read_to_judge
from agentkit.experiment.multi_agent.judging.filming import filmed_agents
from agentkit.experiment.multi_agent.loading import find_policies, load_opponent, load_players, specs_of
from agentkit.experiment.multi_agent.players import Player
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.types import AgentId
from agentkit.wrappers.film import Camera, Film

EVALUATION_FIELDS = (
    "environment", "environment_settings", "evaluation_max_steps", "num_envs", "on_nan", "policies", "policy_of", "seed"
)  # fmt: skip
"""Of a `MultiAgentConfig`, what an evaluation depends on, or a run's experiment must be made again with."""

_ARGUMENTS = (*EVALUATION_FIELDS, "checkpoint", "imports", "num_episodes", "opponents", "video")

RETURN_OF = "episode_return/"
"""Of a record: before an agent id, the name of that agent's return."""


@final
class MultiAgentEvaluator:
    """Plays episodes with the newest parameters; a context manager.

    Evaluation number k of a run is a function of the seed, k and the parameters, and changes nothing in the training.
    Where policies change by episode, the episodes of each evaluation are those from 0 on.

    Attributes:
        players: by agent id.
        num_cut: episodes of the newest evaluation that the experiment's limit of steps has cut off.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        players: Mapping[AgentId, Player | ChangingPlayer],
        watch: StepWatch | None = None,
    ):
        """Makes an environment of its own.

        Args:
            config: says in what to evaluate.
            players: by agent id.
            watch: ends what hangs; None waits for ever.
        """
        self._config, self._watch = config, watch
        self.players: Mapping[AgentId, Player | ChangingPlayer] = dict(players)
        self._environment = self._make_environment(seed_of_evaluation(config.seed, 0))
        self.num_cut = 0
        self._by_episode: PoliciesByEpisode | None = None

    def run(
        self,
        num_episodes: int,
        number: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float] | None:
        """Returns the record of evaluation `number`; see `experiment.Evaluator.run`.

        The record has ``episode_return`` of all agents with its least and greatest, ``episode_return/ID`` of each, and
        ``wins/ID``, the share of episodes in which an agent had a higher return than every other; where policies change
        by episode also ``policy_return/POLICY``, the mean of the agents that played by it.
        """
        loop = self._loop(number)
        records: list[dict[str, float]] = []
        while len(records) < num_episodes:
            ended = self._play(loop, len(records), should_stop)
            if not ended:
                return None
            records += ended
        self.num_cut = loop.num_cut
        return summarise_agents(records)

    def episodes(self, num_episodes: int, number: int = 0) -> list[dict[str, float]]:
        """Plays episodes and returns their own records."""
        check_num_episodes(num_episodes)
        loop = self._loop(number)
        records = [record for number in range(num_episodes) for record in self._play(loop, number)]
        self.num_cut = loop.num_cut
        return records

    def _play(
        self, loop: MultiAgentLoop, episode: int, should_stop: Callable[[], bool] = lambda: False
    ) -> list[dict[str, float]]:
        """Returns the record of an episode; none where it was stopped."""
        if self._by_episode is None:
            return loop.run(num_episodes=1, stop=should_stop)
        self._by_episode.begin(episode)
        return [record | self._by_episode.returns(record) for record in loop.run(num_episodes=1, stop=should_stop)]

    def _loop(self, number: int) -> MultiAgentLoop:
        """Makes the loop of evaluation `number`, before its first episode."""
        seed = seed_of_evaluation(self._config.seed, number)
        if hasattr(self._environment, "reseed"):
            self._environment.reseed(seed)
        else:
            self._environment.close()
            self._environment = self._make_environment(seed)
        keys = jax.random.split(key_of_evaluation(self._config.seed, number), len(self.players))
        pairs = zip(self.players.items(), keys, strict=True)
        actors: dict[AgentId, Any] = {agent_id: player.make_actor(each) for (agent_id, player), each in pairs}
        for actor in actors.values():
            actor.update(wait=True)
        specs = self._environment.agent_specs()
        self._by_episode = find_by_episode(self._config, specs, actors)
        checks = {agent_id: StepCheck(spec, None, self._config.on_nan) for agent_id, spec in specs.items()}
        limit = evaluation_plan(self._config).max_steps
        return MultiAgentLoop(self._environment, actors, checks=checks, max_episode_steps=limit)

    def _make_environment(self, seed: int) -> Any:
        if self._watch is None:
            return self._config.make_environment(seed)
        return self._watch.make(lambda: self._config.make_environment(seed))

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def summarise_agents(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the means of episodes' records, as `MultiAgentEvaluator.run` says."""
    agents = [name.removeprefix(RETURN_OF) for name in records[0] if name.startswith(RETURN_OF)]
    by_agent = np.array([[record[RETURN_OF + agent_id] for agent_id in agents] for record in records])
    summary = summarise(records)
    for name in sorted({name for record in records for name in record if name.startswith(RETURN_BY)}):
        summary[name] = float(np.mean([record[name] for record in records if name in record]))
    summary |= {RETURN_OF + agent_id: float(mean) for agent_id, mean in zip(agents, by_agent.mean(axis=0), strict=True)}
    if len(agents) > 1:
        highest = by_agent == by_agent.max(axis=1, keepdims=True)
        wins = (highest & (highest.sum(axis=1, keepdims=True) == 1)).mean(axis=0)
        summary |= {f"wins/{agent_id}": float(share) for agent_id, share in zip(agents, wins, strict=True)}
    return summary


@says_what_was_meant
def evaluate_multi_agent(
    run: str | pathlib.Path,
    num_episodes: int = 20,
    video: str | pathlib.Path | Film | None = None,
    *,
    checkpoint: str | int = "newest",
    opponents: Mapping[AgentId, Frozen | str] | None = None,
    imports: Sequence[str] = (),
    **changes: Any,
) -> dict[str, float]:
    """Plays episodes with the policies of a run of several agents; returns means, by agent and in sum, and wins.

    Args:
        run: the run folder.
        num_episodes: at least 1.
        video: a file ``.mp4`` or ``.gif`` for a film of the first 300 steps, or a `Film` that says how many, how fast
            and how large; None for none.
        checkpoint: "newest", or a step.
        opponents: who is to play by another policy: by agent id "random", or a `Frozen` of another run.
        imports: see `experiment.read_config`.
        **changes: fields of `MultiAgentConfig` that an evaluation depends on, such as `seed` or `evaluation_max_steps`.
            Its `environment_settings` stand beside the run's own, or instead of them.

    Returns:
        What `MultiAgentEvaluator.run` does, with ``steps``, those of the checkpoint, and ``episodes_cut``.

    Raises:
        ConfigError: no such run or checkpoint, or a video of an environment that cannot render.
        UnknownNameError: there is no such agent, or no such argument.
    """
    check_options(changes, _ARGUMENTS, MultiAgentConfig, "evaluate_multi_agent")
    film = video if video is None or isinstance(video, Film) else Film(video)
    check_num_episodes(num_episodes)
    game = _find_game(run, checkpoint, opponents or {}, imports, changes)
    with film_camera(film) as camera:
        return _play(game, num_episodes, camera)


def show_multi_agent(
    run: str | pathlib.Path,
    camera: Camera,
    num_episodes: int = 1,
    *,
    checkpoint: str | int = "newest",
    opponents: Mapping[AgentId, Frozen | str] | None = None,
    imports: Sequence[str] = (),
    **changes: Any,
) -> dict[str, float]:
    """Plays a run's checkpoint in front of a camera, such as a window; returns what `evaluate_multi_agent` does.

    Args:
        run: the run folder.
        camera: called after each step with a function that draws, ``() -> uint8 [H, W, 3]``.
        num_episodes: at least 1.
        checkpoint: see `evaluate_multi_agent`, as all that follow.
        opponents: likewise.
        imports: likewise.
        **changes: likewise.
    """
    check_options(changes, set(_ARGUMENTS) - {"video"}, MultiAgentConfig, "show_multi_agent")
    check_num_episodes(num_episodes)
    game = _find_game(run, checkpoint, opponents or {}, imports, changes)
    return _play(game, num_episodes, camera)


class _Game(NamedTuple):
    """Holds in what is played, who plays, and after how many steps of training."""

    config: MultiAgentConfig
    players: Mapping[AgentId, Player | ChangingPlayer]
    steps: int


def _find_game(
    run: str | pathlib.Path,
    checkpoint: str | int,
    opponents: Mapping[AgentId, Frozen | str],
    imports: Sequence[str],
    changes: dict[str, Any],
) -> _Game:
    """Returns what a run folder says of a game, with the changes and opponents asked for."""
    config = read_to_judge(run, imports=imports, **changes)
    agent_specs = specs_of(config)
    for agent_id in opponents:
        if agent_id not in agent_specs:
            raise unknown_name("agent", agent_id, agent_specs)
    players = load_players(config, run, checkpoint, agent_specs.keys() - opponents.keys())
    own = [agent_id for agent_id in agent_specs if agent_id not in opponents]
    found = players_of(config, own, agents_by_policy(config, agent_specs), players)
    by_agent = {
        agent_id: found[agent_id] if agent_id in found else load_opponent(agent_id, opponents[agent_id], spec, imports)
        for agent_id, spec in agent_specs.items()
    }
    return _Game(config, by_agent, find_policies(run, checkpoint).step)


def _play(game: _Game, num_episodes: int, camera: Camera | None) -> dict[str, float]:
    config = game.config if camera is None else filmed_agents(game.config, camera)
    with MultiAgentEvaluator(config, game.players) as evaluator:
        record = summarise_agents(evaluator.episodes(num_episodes))
        return {"steps": game.steps, **record, "episodes_cut": evaluator.num_cut}
