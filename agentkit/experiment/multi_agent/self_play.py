"""Self-play: earlier parameters of policies that learn are kept in pools, and agents play by them as opponents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import dm_env
import jax
import numpy as np

from agentkit import nests
from agentkit.core import Adder
from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.config import Pool
from agentkit.experiment.multi_agent.players import Trained
from agentkit.experiment.policies.restore_policy import read_params
from agentkit.types import AgentId, Nest
from agentkit.variables import VariableClient

DECAY = 0.99
"""What is left of a pool's games at each further one against the same parameters, as of AlphaStar's payoffs."""


@final
class Seat:
    """Gives an agent's actor the parameters to play by, see `core.Parameters`: the newest, or earlier ones.

    Attributes:
        held: the earlier ones; None where the agent plays by the newest, and learns.
    """

    def __init__(self, client: VariableClient):
        """Takes the client that has the newest."""
        self._client = client
        self.held: Nest | None = None

    @property
    def params(self) -> Nest:
        """Returns the parameters to act with."""
        return self._client.params if self.held is None else self.held

    def update(self, wait: bool = False) -> None:
        """Fetches newer ones where it is time."""
        self._client.update(wait)


@final
class SeatAdder(Adder):
    """Records an agent's episodes where it plays to learn, and no others."""

    def __init__(self, adder: Any, seat: Seat):
        """Takes the adder that records, which is closed with this."""
        self._adder, self._seat = adder, seat

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Adder`."""
        if self._seat.held is None:
            self._adder.add_first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """See `core.Adder`."""
        if self._seat.held is None:
            self._adder.add(action, next_timestep, extras)

    def reset(self) -> None:
        """See `core.Adder`."""
        self._adder.reset()

    def close(self) -> None:
        """See `core.Adder`."""
        self._adder.close()

    def save(self) -> dict[str, Any]:
        """Returns the state of the adder inside; `SelfPlay` knows who is playing."""
        found: dict[str, Any] = self._adder.save()
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        self._adder.restore(state)


@final
@dataclasses.dataclass
class Earlier:
    """Holds parameters of some time ago, and how games against them went.

    Attributes:
        step: of the environment, when they were the newest.
        params: the policy's.
        games: against them, of late: by the id of the policy that learned from these.
        won: of those games; a draw counts half.
    """

    step: int
    params: Nest
    games: dict[str, float] = dataclasses.field(default_factory=dict)
    won: dict[str, float] = dataclasses.field(default_factory=dict)

    def add_game(self, policy_id: str, score: float) -> None:
        """Counts a game, of which a policy won this share."""
        self.games[policy_id] = DECAY * self.games.get(policy_id, 0.0) + 1.0
        self.won[policy_id] = DECAY * self.won.get(policy_id, 0.0) + score

    def win_rate(self, policy_id: str) -> float:
        """Returns the share of its games that a policy won of late; a half before the first."""
        return self.won[policy_id] / self.games[policy_id] if policy_id in self.games else 0.5


def chances(pool: Sequence[Earlier], choose: str, policy_id: str) -> np.ndarray:
    """Returns the chance of each of a pool to be the opponent of a policy, float64 ``[P]``.

    Args:
        pool: the oldest first, at least one.
        choose: see `Pool`.
        policy_id: of the policy that learns.

    >>> chances([Earlier(0, None, {"a": 4.0}, {"a": 4.0}), Earlier(9, None, {"a": 4.0}, {"a": 2.0})], "uniform", "a")
    array([0.5, 0.5])
    """
    if choose == "newest":
        return np.eye(len(pool))[-1]
    weights = np.ones(len(pool))
    if choose == "prioritized":
        weights = (1.0 - np.array([earlier.win_rate(policy_id) for earlier in pool])) ** 2
        if weights.sum() <= 0.0:  # All are beaten each time.
            weights = np.ones(len(pool))
    found: np.ndarray = weights / weights.sum()
    return found


def score_of(own: float, other: float) -> float:
    """Returns the share of a game that goes to one of two returns: 1 to the higher, a half of a draw."""
    return 1.0 if own > other else 0.5 if own == other else 0.0


@final
class SelfPlay:
    """Decides at the start of each episode who learns and who plays by which earlier parameters, and keeps new ones.

    Attributes:
        pools: by policy id, the oldest first.
        seats: of the agents that learn.
    """

    def __init__(
        self,
        config: Pool,
        seed: int,
        trained: Sequence[Trained],
        plays: Mapping[AgentId, str],
    ):
        """Begins with empty pools: until the first parameters are kept, all learn.

        Args:
            config: how parameters are kept and chosen.
            seed: which episode has which opponents is a function of this, of its number and of the pools.
            trained: the policies that learn.
            plays: the policy id of each agent id.

        Raises:
            ConfigError: fewer than two agents learn, or a policy has a learner of its own.
        """
        seats = {agent_id: Seat(each.client) for each in trained for agent_id in each.agent_ids}
        if len(seats) < 2:
            raise ConfigError(
                f"opponents: a pool is for two agents or more that learn, found {', '.join(seats) or 'none'}. Leave "
                "it out, or give the others a policy that learns; a Frozen one stays as it is."
            )
        for each in trained:
            if each.agent.make_learner is not None:
                raise ConfigError(
                    f"opponents: {each.policy_id!r} has a learner of its own, whose parameters a pool cannot keep yet. "
                    "Leave opponents out."
                )
        self._config, self._seed = config, seed
        self._trained = {each.policy_id: each for each in trained}
        self.seats, self._plays = seats, dict(plays)
        self.pools: dict[str, list[Earlier]] = {policy_id: [] for policy_id in self._trained}
        self._episode = 0
        self._playing: dict[AgentId, Earlier] = {}

    def begin(self, num_steps: int) -> None:
        """Begins an episode: keeps parameters where it is time, and tells each seat by which to play."""
        newest = max((pool[-1].step for pool in self.pools.values() if pool), default=0)
        if num_steps // self._config.period > newest // self._config.period:
            self._keep(num_steps)
        self._playing = self._draw()
        self._episode += 1
        self._tell()

    def _keep(self, num_steps: int) -> None:
        for policy_id, pool in self.pools.items():
            params = VariableClient(self._trained[policy_id].store).params
            pool.append(Earlier(num_steps, params))
            del pool[: -self._config.size]

    def _draw(self) -> dict[AgentId, Earlier]:
        """Returns who plays by which earlier parameters; of an episode in which all learn nobody does."""
        rng = np.random.default_rng([self._seed, self._episode])
        if not all(self.pools.values()) or rng.random() >= self._config.share:
            return {}
        agent_ids = list(self.seats)
        learner = agent_ids[rng.integers(len(agent_ids))]
        playing = {}
        for agent_id in agent_ids:
            if agent_id != learner:
                pool = self.pools[self._plays[agent_id]]
                p = chances(pool, self._config.choose, self._plays[learner])
                playing[agent_id] = pool[rng.choice(len(pool), p=p)]
        return playing

    def _tell(self) -> None:
        for agent_id, seat in self.seats.items():
            seat.held = self._playing[agent_id].params if agent_id in self._playing else None

    def end(self, record: Mapping[str, float]) -> None:
        """Counts how the episode went: the learner's return beside that of each opponent.

        Args:
            record: of the loop, with ``episode_return/ID``.
        """
        for learner in self.seats.keys() - self._playing.keys():
            for agent_id, earlier in self._playing.items():
                own, other = record[f"episode_return/{learner}"], record[f"episode_return/{agent_id}"]
                earlier.add_game(self._plays[learner], score_of(own, other))

    def save(self) -> dict[str, Any]:
        """Returns pools and games, and who plays by what; the actors are saved by themselves."""
        return {
            "episode": self._episode,
            "playing": {agent_id: earlier.step for agent_id, earlier in self._playing.items()},
            "pools": {
                policy_id: {
                    str(earlier.step): {
                        "params": {
                            path: np.asarray(leaf) for path, leaf in nests.flatten_to_paths(earlier.params).items()
                        },
                        "games": dict(earlier.games),
                        "won": dict(earlier.won),
                    }
                    for earlier in pool
                }
                for policy_id, pool in self.pools.items()
            },
        }

    def restore(self, state: Mapping[str, Any], mid_episode: bool) -> None:
        """Restores the state that `save` returned.

        Args:
            state: see there.
            mid_episode: whether the unfinished episode goes on.

        Raises:
            CheckpointError: it has other policies' parameters.
        """
        self._episode = int(state["episode"])
        for policy_id, trained in self._trained.items():
            self.pools[policy_id] = read_pool(state["pools"][policy_id], trained.parts.update, policy_id)
        by_step = {policy_id: {each.step: each for each in pool} for policy_id, pool in self.pools.items()}
        playing = state["playing"] if mid_episode else {}
        self._playing = {agent_id: by_step[self._plays[agent_id]][int(step)] for agent_id, step in playing.items()}
        self._tell()


def read_pool(saved: Mapping[str, Any], update: Any, policy_id: str) -> list[Earlier]:
    """Returns the pool of a policy out of a checkpoint, the oldest first.

    Args:
        saved: of `SelfPlay.save`, by step.
        update: the agent's `learning.Update`, on its networks.
        policy_id: for the error.

    Raises:
        CheckpointError: it has another agent's parameters.
    """
    found = []
    for step in sorted(saved, key=int):
        params = read_params(update, saved[step]["params"], f"The pool of {policy_id!r}, step {int(step):,},")
        games, won = ({key: float(x) for key, x in saved[step][name].items()} for name in ("games", "won"))
        found.append(Earlier(int(step), jax.device_put(params), games, won))
    return found
