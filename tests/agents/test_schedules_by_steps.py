"""Schedules by steps count the steps that environments took: not rows, items or updates, however many these are."""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import numpy as np
import pytest

from agentkit import specs
from agentkit.adders import Hindsight
from agentkit.agents import a2c, d4pg, dqn, impala, npg, ppo, reinforce, trpo
from agentkit.agents.addons import with_her
from agentkit.envs.reach_goal import BitFlip
from agentkit.experiment import ExperimentConfig, MultiAgentConfig, run
from agentkit.learning import Linear

NUM_STEPS = 48
ON_POLICY = {"segment_length": 8, "batch_size": 2, "hidden_sizes": (2,)}
EPOCHS = {"num_minibatches": 1, "num_value_epochs": 1}
REPLAY = {"batch_size": 4, "hidden_sizes": (2,), "min_replay_size": 8}


class Episodes(dm_env.Environment):
    """Has episodes of `length` steps, and counts the steps of all of its kind."""

    num_steps = 0

    def __init__(self, length: int, continuous: bool = False, goals: bool = False):
        self._length, self._continuous, self._goals = length, continuous, goals

    def _observe(self) -> Any:
        seen = np.zeros(1, np.float32)
        return dict.fromkeys(self.observation_spec(), seen) if self._goals else seen

    def reset(self) -> dm_env.TimeStep:
        self._t = 0
        return dm_env.restart(self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._t >= self._length:
            return self.reset()
        self._t += 1
        Episodes.num_steps += 1
        reward = 0.0 if self._goals else 1.0  # Goals are always reached, for which `BitFlip.compute_reward` is 0.
        return (dm_env.truncation if self._t >= self._length else dm_env.transition)(reward, self._observe())

    def observation_spec(self) -> Any:
        one = specs.BoundedArray((1,), np.float32, 0.0, 1.0)
        return dict.fromkeys(("achieved_goal", "desired_goal", "observation"), one) if self._goals else one

    def action_spec(self) -> Any:
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0) if self._continuous else specs.DiscreteArray(2)


_seen: dict[float, list[tuple[int, int]]] = {}
"""One for all tests: a training uses what an earlier one of an equal agent has compiled."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[float, list[tuple[int, int]]]:
    """By the value that a schedule starts with: where it was asked for its value, and the steps taken by then."""
    _seen.clear()

    def call(schedule: Linear, count: Any) -> Any:
        def note(count: Any) -> None:
            _seen.setdefault(schedule.start, []).append((int(count), Episodes.num_steps))

        jax.debug.callback(note, count)
        return schedule.start + 0.0 * count

    monkeypatch.setattr(Linear, "__call__", call)
    monkeypatch.setattr(Episodes, "num_steps", 0)
    return _seen


def _train(agent: Any, seen: dict[float, Any], num_envs: int | None, **environment: Any) -> None:
    make = lambda seed: Episodes(**environment)  # noqa: E731
    run(ExperimentConfig(agent, make, NUM_STEPS, num_envs=num_envs, evaluation_period=0))
    jax.effects_barrier()


def falling(**starts: float) -> dict[str, Any]:
    return {name: Linear(start, 0.0, NUM_STEPS) for name, start in starts.items()}


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "ppo": (
        lambda: ppo.make_agent(ppo.Config(**ON_POLICY, num_epochs=1, num_minibatches=1, **SCHEDULES["ppo"])),
        {},
    ),
    "a2c": (lambda: a2c.make_agent(a2c.Config(**ON_POLICY, **SCHEDULES["a2c"])), {}),
    "impala": (lambda: impala.make_agent(impala.Config(**ON_POLICY, **SCHEDULES["impala"])), {}),
    "reinforce": (lambda: reinforce.make_agent(reinforce.Config(**ON_POLICY, **EPOCHS, **SCHEDULES["reinforce"])), {}),
    "trpo": (lambda: trpo.make_agent(trpo.Config(**ON_POLICY, **EPOCHS, **SCHEDULES["trpo"])), {}),
    "npg": (lambda: npg.make_agent(npg.Config(**ON_POLICY, **EPOCHS, **SCHEDULES["npg"])), {}),
    "dqn": (lambda: dqn.make_agent(dqn.Config(**REPLAY, n_step=10, prioritized=True, **SCHEDULES["dqn"])), {}),
    "d4pg": (lambda: d4pg.make_agent(d4pg.Config(**REPLAY, n_step=10, **SCHEDULES["d4pg"])), {"continuous": True}),
    "hindsight": (
        lambda: with_her(
            dqn.make_agent(dqn.Config(**REPLAY, n_step=1, **SCHEDULES["hindsight"])),
            Hindsight(BitFlip.compute_reward, BitFlip.compute_terminated, num_relabelled=4),
        ),
        {"goals": True},
    ),
}
SCHEDULES = {
    "ppo": falling(learning_rate=0.1, clip_epsilon=0.2, entropy_cost=0.3),
    "a2c": falling(learning_rate=0.1, entropy_cost=0.3),
    "impala": falling(learning_rate=0.1, entropy_cost=0.3),
    "reinforce": falling(learning_rate=0.1),
    "trpo": falling(learning_rate=0.1),
    "npg": falling(learning_rate=0.1),
    "dqn": falling(learning_rate=0.1, epsilon=0.2, importance_exponent=0.3),
    "d4pg": falling(critic_learning_rate=0.1, policy_learning_rate=0.2),
    "hindsight": falling(learning_rate=0.1, epsilon=0.2),
}
LANDING = {("ppo", 1, None), ("dqn", 1, 3)}  # Of segments and of items: no other test sees either.
GRID = [
    pytest.param(name, length, num_envs, marks=() if (name, length, num_envs) in LANDING else pytest.mark.full)
    for name in CASES
    for length in (1, 2, 1_000)
    for num_envs in (None, 3)
    if (name, length) != ("hindsight", 1_000)  # No episode ends, so nothing is learned.
]


@pytest.mark.parametrize(("name", "length", "num_envs"), GRID)
def test_a_schedule_stands_where_the_environments_do(
    name: str, length: int, num_envs: int | None, seen: dict[float, list[tuple[int, int]]]
) -> None:
    make_agent, environment = CASES[name]
    _train(make_agent(), seen, num_envs, length=length, **environment)
    batch = 16 if name in ("ppo", "a2c", "impala", "reinforce", "trpo", "npg") else 0
    assert sorted(seen) == sorted(schedule.start for schedule in SCHEDULES[name].values())
    for counts in seen.values():
        asked, taken = np.array(counts).T
        assert np.all(asked <= taken) and np.all(asked >= taken - batch) and taken[-1] >= NUM_STEPS - max(batch, 4)


# By game, what a step is, and who plays by which policy: where the first batch began, at least and at most. Of the
# shared policy two batches are there at once, after 13 steps of games of one step, or 11 of games of two.
BEGINNINGS = {
    ("agentkit:matrix_game", "environment", "shared"): (7, 7),
    ("agentkit:matrix_game", "agents", "each"): (0, 0),
    ("agentkit:tic_tac_toe", "environment", "each"): (0, 4),
    ("jax:two_step_game", "environment", "shared"): (6, 6),
    ("jax:tic_tac_toe", "environment", "each"): (0, 4),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("case", "expected"), BEGINNINGS.items(), ids=map("-".join, BEGINNINGS))
def test_of_several_agents_a_schedule_stands_where_a_batch_began(
    case: tuple[str, Any, str], expected: tuple[int, int], seen: dict[float, list[tuple[int, int]]]
) -> None:
    game, count_steps_by, policy_of = case
    settings = ppo.Config(**ON_POLICY, num_epochs=1, num_minibatches=1, clip_epsilon=Linear(0.2, 0.0, 32))
    run(
        MultiAgentConfig(
            ppo.make_agent(settings), game, 32, policy_of=policy_of, num_envs=2, count_steps_by=count_steps_by,
            on_device=game.startswith("jax:"), evaluation_period=0, progress=False,
        )
    )  # fmt: skip
    jax.effects_barrier()
    first = min(asked for asked, _ in seen[0.2])
    assert expected[0] <= first <= expected[1]
