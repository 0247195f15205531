"""Learners of a user's own that would never end a turn are told so, in a run of one agent and in one of several."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import agentkit
from agentkit import core
from agentkit.agents import dqn
from agentkit.agents.common.experience_wrappers import WithRateLimiter
from agentkit.envs.catch import Catch
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment.runs.logs import learner_row
from agentkit.learning.learner import as_floats
from agentkit.replay import MinSize
from agentkit.types import TableInfo

STOCK = dqn.make_agent(dqn.Config(hidden_sizes=(4,), batch_size=4, min_replay_size=20, n_step=1))


class Learner:
    """Draws a batch in every third step, and leaves the parameters as they are."""

    def __init__(self, parts: core.LearnerParts) -> None:
        self.dataset, self.num_steps = parts.dataset, 0
        self.params = dqn.make_networks(parts.environment_spec, STOCK.config).init(jax.random.PRNGKey(0))

    def step(self) -> None:
        self.num_steps += 1
        if self.num_steps % 3 == 0:
            next(self.dataset)

    def variables(self) -> dict[str, Any]:
        return {"policy": self.params}

    def save(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Idle(Learner):
    """Draws nothing."""

    def step(self) -> None:
        pass


class Greedy(Learner):
    """Draws more than is due."""

    def step(self) -> None:
        for _ in range(1_000):
            next(self.dataset)


def run(learner: Any, several: bool, **parts: Any) -> agentkit.Result:
    agent = dataclasses.replace(STOCK, make_learner=learner, **parts)
    settings: dict[str, Any] = {"evaluation_period": 0, "progress": False}
    if several:
        return agentkit.run(agentkit.MultiAgentConfig(agent, Catch, 40, "shared", **settings))
    return agentkit.run(agentkit.ExperimentConfig(agent, Catch, 40, **settings))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    ("learner", "parts", "message"),
    [
        (Idle, {}, r"make_learner: expected .* drew none in 10,000 steps .* Begin step\(\) with next\(parts.dataset\)"),
        (Greedy, {}, r"Table 'transitions': expected a draw when .* Draw one batch in each step\(\)"),
        (
            Learner,
            {"experience": WithRateLimiter(STOCK.experience, MinSize(20))},
            r"Table 'transitions': expected a rate limit .*MinSize, the default.*learning.rate_limit\(batch_plan",
        ),
    ],
)
def test_a_turn_that_would_not_end_is_an_error(learner: Any, parts: Any, message: str, several: bool) -> None:
    with pytest.raises(ConfigError, match=message):
        run(learner, several, **parts)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"a": "x"}, "metrics: expected a number for 'a', found 'x'. Leave it out"),
        ({"a": np.ones(3)}, r"metrics: expected a number for 'a', found an array of the shape \[3\]. Take its mean"),
        (None, "metrics: expected a dictionary of numbers by name, found None"),
    ],
)
def test_a_metric_that_is_no_number_is_named(metrics: Any, message: str) -> None:
    class Measured(Learner):
        def metrics(self) -> Any:
            return metrics

    with pytest.raises(SpecError, match=message):
        run(Measured, several=False)


def test_a_metric_of_one_number_in_an_array_is_taken() -> None:
    """The check of shapes before a run takes it, so the log may not refuse it when the work is done."""
    assert as_floats({"a": np.ones(1, np.float32), "b": jnp.bfloat16(2), "c": True}) == {"a": 1.0, "b": 2.0, "c": 1.0}


class Tensor:
    """Is one of PyTorch's with a gradient: a number, and no array of numpy's."""

    def __float__(self) -> float:
        return 3.0

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_what_says_that_it_is_a_number_is_taken_and_counts_stay() -> None:
    metrics = as_floats({"loss": Tensor(), "steps": 7, "replay_size": 8})
    row = learner_row(metrics, 20, TableInfo("t", size=1, max_size=9, num_inserted=1, num_sampled=2))
    assert {**row, "samples_per_insert": 2.0} == {"steps": 20, "loss": 3.0, "replay_size": 1, "samples_per_insert": 2.0}


class Passes(Learner):
    """Goes over a batch in as many steps as PPO of 10 epochs with 32 minibatches does."""

    def step(self) -> None:
        self.num_steps += 1
        if self.num_steps % 320 == 1:
            next(self.dataset)


@pytest.mark.parametrize("learner", [Learner, Passes])
def test_a_learner_may_go_over_a_batch_several_times(learner: Any) -> None:
    assert run(learner, several=False).updates > 20
