"""Columns on demand: entries of gymnasium's info and ids, stored beside the steps in either replay, up to the loss."""

import csv
import json
import pathlib

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import agentkit
from agentkit import specs
from agentkit.agents import dqn, ppo, r2d2
from agentkit.agents.addons import with_postprocessing
from agentkit.envs.columns import ColumnSource
from agentkit.envs.gymnasium import GymnasiumEnvironment
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import read_config
from agentkit.replay import InProcessReplay
from agentkit.specs import make_environment_spec

DQN = {"hidden_sizes": (4,), "min_replay_size": 12, "batch_size": 8, "updates_per_step": 0.25, "n_step": 3}
COLUMNS = ("info.height", "t", "episode", "info.of.pair", "environment", "info.success")


class Ladder(gymnasium.Env):
    """Shows a number of the episode and the step, and says more in its info; ends after 5 steps."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._number, self._step = self.np_random.integers(1_000), 0
        return self._observe(), {"name": "ladder"}

    def step(self, action):
        self._step += 1
        info = {"height": 10.0 * self._step, "name": "ladder", "of": {"pair": np.array([self._step, action])}}
        if self._step % 2:  # Not in each step.
            info["success"] = True
        return self._observe(), 1.0, False, self._step == 5, info

    def _observe(self):
        return np.array([self._number, self._step], np.float32)


def loss_with_columns(networks, config):
    """DQN's, which also tells how far the columns are from what the observations say."""
    loss = dqn.make_loss(networks, config)

    def checked(params, state, batch, key):
        output = loss(params, state, batch, key)
        data, columns = batch.data, batch.data.extras
        wrong = jnp.abs(columns["t"] - data.observation[:, 1]) + jnp.abs(
            columns["info.height"] - 10 * (columns["t"] + 1)
        )
        pairs = jnp.stack([columns["t"] + 1, data.action], axis=-1)
        wrong += jnp.sum(jnp.abs(columns["info.of.pair"] - pairs), axis=-1)
        wrong += jnp.abs(columns["mark"] - data.action - 5)
        wrong += columns["info.success"] != (columns["t"] % 2 == 0)
        return output._replace(metrics={**output.metrics, "wrong": jnp.max(wrong), "seen": jnp.max(columns["t"])})

    return checked


def marking_policy(networks, config, evaluation=False):
    """DQN's, which emits something of its own with each action."""
    policy = dqn.make_policy(networks, config, evaluation)

    def act(params, key, observation, state):
        action, state, _ = policy.act(params, key, observation, state)
        return action, state, {"mark": action + 5}

    return policy._replace(act=act, extras_spec={"mark": specs.Array((), np.int32)})


def experiment_in(folder, **settings):
    agent = dqn.make_agent(dqn.Config(**DQN), make_loss=loss_with_columns, make_policy=marking_policy)
    usual = {"agent": agent, "environment": Ladder, "num_steps": 40, "columns": COLUMNS, "evaluation_period": 40}
    usual |= {"evaluation_episodes": 1, "log_seconds": 0.0, "run_directory": folder}
    return agentkit.ExperimentConfig(**{**usual, **settings})


def learned(folder):
    with open(folder / "logs" / "learner.csv") as file:
        rows = list(csv.DictReader(file))
    return [float(row["wrong"]) for row in rows], max(float(row["seen"]) for row in rows)


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"replay": "reverb"}, marks=pytest.mark.reverb),
        {"num_envs": 3},
        {"num_envs": 3, "workers": 2},
        {"num_envs": 3, "workers": 2, "ready": 2},
    ],
    ids=lambda settings: "-".join(settings) or "one",
)
def test_they_reach_the_loss(tmp_path: pathlib.Path, settings: dict) -> None:
    agentkit.run(experiment_in(tmp_path / "run", **settings))
    wrong, seen = learned(tmp_path / "run")
    assert wrong and not any(wrong) and seen == 4


@pytest.mark.full
def test_a_resumed_run_has_the_columns_of_a_whole_one(tmp_path: pathlib.Path) -> None:
    def contents(folder):
        experiment = read_config(folder, environment=Ladder)
        assert experiment.columns == COLUMNS and json.loads((folder / "config.json").read_text())["columns"]
        (path,) = [p for p in (folder / "checkpoints").iterdir() if p.name.endswith("40")]
        spec = make_environment_spec(experiment.make_environment(0))
        with InProcessReplay(experiment.agent.make_tables(spec)) as replay:
            replay.restore(path / "replay")
            return replay.contents("transitions")[0]

    agentkit.run(experiment_in(tmp_path / "whole", num_envs=2))
    agentkit.run(experiment_in(tmp_path / "halved", num_envs=2, num_steps=18))
    agentkit.run(experiment_in(tmp_path / "halved", num_envs=2), resume=True)
    whole, halved = contents(tmp_path / "whole"), contents(tmp_path / "halved")
    for name in COLUMNS:
        np.testing.assert_array_equal(whole.extras[name], halved.extras[name])
    assert set(whole.extras["environment"]) == {0, 1} and set(whole.extras["episode"]) == {0, 1, 2, 3}
    ids = zip(whole.extras["environment"].tolist(), whole.extras["episode"].tolist(), strict=True)
    shown = set(zip(ids, whole.observation[:, 0].tolist(), strict=True))
    assert len(shown) == 8  # One number of each episode of each environment.


@pytest.mark.full
def test_they_are_a_field_of_an_on_policy_agents_extras() -> None:
    agent = ppo.make_agent(ppo.Config(hidden_sizes=(4,), segment_length=8, num_minibatches=1, num_epochs=1))
    made = agentkit.ExperimentConfig(agent, Ladder, 20, columns=("t", "info.success"), evaluation_period=0, num_envs=2)
    samples = agentkit.sample(made, num_steps=12, num_envs=2, explore=True)
    np.testing.assert_array_equal(samples.extras.columns["t"], samples.t)
    np.testing.assert_array_equal(samples.extras.columns["info.success"], samples.t % 2 == 0)
    assert agentkit.sample(made, num_steps=3).extras == ()  # Evaluations have none.
    assert agentkit.run(made).updates == 1


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"columns": "t"}, ConfigError, "expected a list of names"),
        ({"columns": ("t", "t")}, ConfigError, "each name once"),
        ({"columns": ("info.width=wide",)}, ConfigError, "such as info.is_success=False, found info.width=wide"),
        ({"columns": ("t=0",)}, ConfigError, "expected an entry of the info, and its value where it is absent"),
        ({"columns": ("info.width", "info.width=0")}, ConfigError, "each name once"),
        ({"columns": ("time",)}, UnknownNameError, "column 'time'"),
        (
            {"columns": ("info.width",)},
            ConfigError,
            r"a first step has no 'width'; that .* has height, name, of, success\. If later .*: info\.width=0\.0",
        ),
        ({"columns": ("info.name",)}, SpecError, "info.name is array.'ladder'"),
        ({"columns": ("info.x",), "environment": "agentkit:catch"}, ConfigError, "without one. Ask for episode"),
        ({"columns": ("t",), "agent": r2d2.make_agent()}, ConfigError, "the policy emits a LSTMState"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        agentkit.run(experiment_in(tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()


class Climb(Ladder):
    """Says in the last step's info only whether all went well, and how."""

    def step(self, action):
        *others, ends, _ = super().step(action)
        return *others, ends, {"is_success": bool(action), "score": np.array([1.0, 2.0])} if ends else {}


def last_is_success(piece):
    """Marks each step of an episode by its last one's success."""
    return piece.with_columns(success=np.full(len(piece.reward), piece.extras.columns["info.is_success"][-1]))


def ppo_loss_with_columns(networks, config):
    """PPO's, which also tells how far columns are from what they say."""
    loss = ppo.make_loss(networks, config)

    def checked(params, state, batch, key):
        output = loss(params, state, batch, key)
        rows = batch.data
        columns = rows.extras.columns
        wrong = columns["info.is_success"] & ((columns["t"] != 4) | ~columns["success"])
        wrong |= (columns["info.score"][:, 0] != jnp.where(columns["t"] == 4, 1.0, -1.0)) & (rows.mask > 0)
        seen = {"wrong": jnp.max(wrong), "seen": jnp.max(columns["success"])}
        return output._replace(metrics={**output.metrics, **seen})

    return checked


@pytest.mark.full
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("replay", ["in_process", pytest.param("reverb", marks=pytest.mark.reverb)])
def test_success_at_the_end_reaches_the_loss_of_each_step_of_its_episode(tmp_path, mode, replay) -> None:
    config = ppo.Config(hidden_sizes=(4,), segment_length=8, batch_size=2, num_minibatches=1, batch_mode=mode)
    agent = ppo.make_agent(config, make_loss=ppo_loss_with_columns)
    agent = with_postprocessing(agent, last_is_success, columns={"success": False})
    columns = ("info.is_success=False", "info.score=[-1.0, -1.0]", "t")
    agentkit.run(experiment_in(tmp_path, agent=agent, environment=Climb, columns=columns, replay=replay))
    wrong, _ = learned(tmp_path)
    assert wrong and not any(wrong)
    with open(tmp_path / "logs" / "learner.csv") as file:
        assert any(float(row["seen"]) for row in csv.DictReader(file))
    assert read_config(tmp_path, environment=Climb, agent=agent).columns == columns


def test_an_entry_of_the_last_step_only_is_its_default_before_and_is_refused_without_one() -> None:
    with pytest.raises(
        ConfigError, match=r"has no 'is_success'; .* has nothing\. If later ones have it, say what it is"
    ):
        ColumnSource(GymnasiumEnvironment(Climb()), ["info.is_success"])
    columns = ["info.is_success=False", "info.never=0.5", "info.score=[3.0, 3.0]"]
    source = ColumnSource(GymnasiumEnvironment(Climb()), columns)
    assert {name: (spec.dtype.name, spec.shape) for name, spec in source.columns_spec().items()} == {
        "info.is_success": ("bool", ()), "info.never": ("float32", ()), "info.score": ("float32", (2,))
    }  # fmt: skip
    source.reset()
    for _ in range(4):
        source.step(1)
        found = source.info_columns
        assert not found["info.is_success"] and found["info.never"] == 0.5 and found["info.score"].tolist() == [3, 3]
    assert source.step(1).last() and source.info_columns["info.is_success"]
    assert source.info_columns["info.score"].tolist() == [1, 2]


@pytest.mark.parametrize(("first", "later"), [(0, 0.5), (0, 2**40), (True, 2), (0.0, "far"), (1.0, [1.0, 2.0])])
def test_an_entry_that_becomes_another_kind_is_refused_and_not_cast(first, later) -> None:
    class Changing(Ladder):
        def step(self, action):
            return self._observe(), 1.0, False, False, {"height": later}

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"height": first}

    source = ColumnSource(GymnasiumEnvironment(Changing()), ["info.height"])
    source.reset()
    assert source.info_columns["info.height"] == first
    source.step(0)
    with pytest.raises(SpecError, match=r"columns: info\.height, as it was at first: expected"):
        _ = source.info_columns
