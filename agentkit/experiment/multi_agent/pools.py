"""Pools of earlier parameters of the policies that learn, and who plays by which of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax
import numpy as np

from agentkit import nests
from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.players import Trained
from agentkit.experiment.policies.pool import DECAY, Pool
from agentkit.experiment.policies.restore_policy import read_params
from agentkit.types import AgentId, Nest


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
        """Returns the share of its games that a policy won of late, with half a win in one game more.

        That is a half before the first game, and below 1 after a lucky one: at 1 they would not be drawn again.
        """
        return (self.won.get(policy_id, 0.0) + 0.5) / (self.games.get(policy_id, 0.0) + 1.0)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the parameters by path, for `read_params`."""
        return {path: np.asarray(leaf) for path, leaf in nests.flatten_to_paths(self.params).items()}

    def saved(self) -> dict[str, Any]:
        """Returns parameters and games, for `read_pool`."""
        return {"params": self.arrays(), "games": dict(self.games), "won": dict(self.won)}


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
    found: np.ndarray = weights / weights.sum()
    return found


def score_of(own: float, other: float) -> float:
    """Returns the share of a game that goes to one of two returns: 1 to the higher, a half of a draw."""
    return 1.0 if own > other else 0.5 if own == other else 0.0


def check_pool(trained: Sequence[Trained]) -> None:
    """Refuses a pool of policies that cannot have one.

    Raises:
        ConfigError: fewer than two agents learn, or a policy has a learner of its own.
    """
    agent_ids = [agent_id for each in trained for agent_id in each.agent_ids]
    if len(agent_ids) < 2:
        raise ConfigError(
            f"opponents: a pool is for two agents or more that learn, found {', '.join(agent_ids) or 'none'}. Leave "
            "it out, or give the others a policy that learns; a Frozen one stays as it is."
        )
    for each in trained:
        if each.agent.make_learner is not None:
            raise ConfigError(
                f"opponents: {each.policy_id!r} has a learner of its own, whose parameters a pool cannot keep yet. "
                "Leave opponents out."
            )


@final
class Pools:
    """Keeps earlier parameters of each policy, and decides of each episode who learns and who plays by which of them.

    Attributes:
        by_policy: the earlier parameters by policy id, the oldest first. All pools have those of the same steps.
        plays: the policy id of each agent that learns.
    """

    def __init__(self, config: Pool, seed: int, trained: Sequence[Trained]):
        """Begins with empty pools: until the first parameters are kept, all learn.

        Args:
            config: how parameters are kept and chosen.
            seed: which episode has which opponents is a function of this, of its number and of the pools.
            trained: the policies that learn.

        Raises:
            ConfigError: as `check_pool`.
        """
        check_pool(trained)
        self._config, self._seed = config, seed
        self.plays = {agent_id: each.policy_id for each in trained for agent_id in each.agent_ids}
        self.by_policy: dict[str, list[Earlier]] = {each.policy_id: [] for each in trained}
        self._episode = 0

    @property
    def newest_step(self) -> int:
        """Returns the step of the newest parameters that are kept; 0 before the first."""
        return max((pool[-1].step for pool in self.by_policy.values() if pool), default=0)

    def is_due(self, num_steps: int) -> bool:
        """Returns whether it is time to keep the newest parameters."""
        return num_steps // self._config.period > self.newest_step // self._config.period

    def keep(self, num_steps: int, params: Mapping[str, Nest]) -> None:
        """Adds the parameters of each policy at a step, and drops the oldest beyond the pool's size."""
        for policy_id, pool in self.by_policy.items():
            pool.append(Earlier(num_steps, params[policy_id]))
            del pool[: -self._config.size]

    def draw(self) -> dict[AgentId, Earlier]:
        """Returns who plays the next episode by which earlier parameters; of one in which all learn nobody does."""
        rng = np.random.default_rng([self._seed, self._episode])
        self._episode += 1
        if not all(self.by_policy.values()) or rng.random() >= self._config.share:
            return {}
        agent_ids = list(self.plays)
        learner = agent_ids[rng.integers(len(agent_ids))]
        playing = {}
        for agent_id in agent_ids:
            if agent_id != learner:
                pool = self.by_policy[self.plays[agent_id]]
                p = chances(pool, self._config.choose, self.plays[learner])
                playing[agent_id] = pool[rng.choice(len(pool), p=p)]
        return playing

    def find(self, agent_id: AgentId, step: int) -> Earlier | None:
        """Returns the parameters of an agent's policy that were kept at a step; None where there are none any more."""
        return next((each for each in self.by_policy[self.plays[agent_id]] if each.step == step), None)

    def count(self, playing: Mapping[AgentId, Earlier | None], returns: Mapping[AgentId, float]) -> None:
        """Counts how an episode went: the learner's return beside that of each opponent.

        Args:
            playing: who played by earlier parameters; None for such as have left the pool since.
            returns: of each agent that learns in other episodes, or in this.
        """
        for learner in self.plays.keys() - playing.keys():
            for agent_id, earlier in playing.items():
                if earlier is not None:
                    earlier.add_game(self.plays[learner], score_of(returns[learner], returns[agent_id]))

    def save(self) -> dict[str, Any]:
        """Returns the parameters and the games against them."""
        return {
            "episode": self._episode,
            "pools": {
                policy_id: {str(earlier.step): earlier.saved() for earlier in pool}
                for policy_id, pool in self.by_policy.items()
            },
        }

    def restore(self, state: Mapping[str, Any], trained: Sequence[Trained]) -> None:
        """Restores the state that `save` returned.

        Args:
            state: see there.
            trained: the policies that learn.

        Raises:
            CheckpointError: it has other policies' parameters.
        """
        self._episode = int(state["episode"])
        for each in trained:
            saved = state["pools"][each.policy_id]
            self.by_policy[each.policy_id] = read_pool(saved, each.parts.update, each.policy_id)


def read_pool(saved: Mapping[str, Any], update: Any, policy_id: str) -> list[Earlier]:
    """Returns the pool of a policy out of a checkpoint, the oldest first.

    Args:
        saved: of `Pools.save`, by step.
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
