"""Training from data alone: exact counts, determinism, evaluation, resuming, refusals; and data out of runs."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import signal
from typing import Any

import numpy as np
import pytest
import tree

import agentkit
from agentkit import checkpoint, datasets
from agentkit.agents import bc, discrete_cql, dqn, iql, ppo, r2d2, td3_bc
from agentkit.agents.addons import View, with_views
from agentkit.agents.common.experience_wrappers import WithRateLimiter
from agentkit.datasets.episodes import infer_spec
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.experiment import (
    OfflineConfig,
    ResumeError,
    evaluate,
    load,
    read_offline_config,
    read_replay,
    record_episodes,
    resume_offline,
)
from agentkit.experiment.offline import load_dataset, run_offline
from agentkit.loggers import read_csv
from agentkit.replay import InProcessReplay, MinSize
from agentkit.specs import make_environment_spec, zeros
from agentkit.wrappers.clip_reward import ClipReward
from agentkit.wrappers.reward_scale import RewardScale
from agentkit.wrappers.terminations_as_truncations import TerminationsAsTruncations
from tests.agents import offline_data

EPISODES = offline_data.make_episodes(offline_data.CATCH, 20, [0.5])
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "batch_size": 8}


def make_agent(**settings: Any) -> Any:
    return discrete_cql.make_agent(discrete_cql.Config(**{**SMALL, "target_update_period": 10, **settings}))


def make_config(directory: pathlib.Path | None = None, **settings: Any) -> OfflineConfig:
    usual = {
        "agent": make_agent(),
        "dataset": EPISODES,
        "num_updates": 40,
        "environment": offline_data.CATCH,
        "evaluation_period": 20,
        "evaluation_episodes": 2,
        "checkpoint_period": 20,
        "run_directory": directory,
    }
    return OfflineConfig(**{**usual, **settings})


def state_of(directory: pathlib.Path) -> dict[str, Any]:
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None
    return found.state


def assert_same_training(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for part in ("learner", "dataset"):
        tree.assert_same_structure(found[part], expected[part])
        for x, y in zip(tree.flatten(found[part]), tree.flatten(expected[part]), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of 40 updates, never interrupted."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    result = agentkit.run_offline(make_config(directory))
    assert (result.steps, result.updates, result.interrupted) == (40, 40, False)
    assert [record["updates"] for record in result.evaluations] == [20, 40]
    return directory


@pytest.mark.full
def test_it_logs_what_it_did(whole: pathlib.Path) -> None:
    _, rows = read_csv(whole / "logs" / "evaluation.csv")
    assert [row["steps"] for row in rows] == ["20", "40"]
    record = json.loads((whole / "config.json").read_text())
    assert record["agent"] == "discrete_cql" and record["num_steps"] == 40
    assert record["offline"] == {"dataset": None, "evaluates": True}
    state = state_of(whole)
    assert state["learner"]["num_updates"] == 40 and state["dataset"]["num_sampled"] == 40 * 8


def test_the_learners_log_tells_of_passes_over_the_data(tmp_path: pathlib.Path) -> None:
    run_offline(make_config(tmp_path / "run", log_seconds=0.0))
    _, rows = read_csv(tmp_path / "run" / "logs" / "learner.csv")
    assert [int(row["steps"]) for row in rows] == list(range(1, 41))
    size = sum(len(episode.rewards) for episode in EPISODES)
    assert float(rows[-1]["replay_size"]) == size
    assert float(rows[-1]["samples_per_insert"]) == pytest.approx(40 * 8 / size)
    assert "conservative_gap" in rows[-1]


def test_equal_seeds_train_bit_for_bit_and_others_do_not(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run_offline(make_config(tmp_path / "again"))
    assert_same_training(state_of(tmp_path / "again"), state_of(whole))
    run_offline(make_config(tmp_path / "other", seed=1))
    with pytest.raises(AssertionError):
        assert_same_training(state_of(tmp_path / "other"), state_of(whole))


def test_evaluation_changes_nothing(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run_offline(make_config(tmp_path / "run", evaluation_period=0))
    assert_same_training(state_of(tmp_path / "run"), state_of(whole))


@pytest.mark.parametrize("per_call", [1, 4])
def test_stopped_and_resumed_it_ends_as_if_never_stopped(tmp_path: pathlib.Path, per_call: int) -> None:
    agent = make_agent(updates_per_call=per_call)
    run_offline(make_config(tmp_path / "whole", agent=agent))
    run_offline(make_config(tmp_path / "run", agent=agent, num_updates=20))
    result = run_offline(make_config(tmp_path / "run", agent=agent), resume=True)
    assert result.updates == 40 and [record["updates"] for record in result.evaluations] == [40]
    assert_same_training(state_of(tmp_path / "run"), state_of(tmp_path / "whole"))


def test_a_run_of_a_file_is_resumed_from_its_folder(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = datasets.write_episodes(tmp_path / "data.hdf5", EPISODES)
    run_offline(make_config(tmp_path / "run", dataset=path, num_updates=20))
    config = read_offline_config(tmp_path / "run", num_updates=40)
    assert config.dataset == str(path) and config.evaluation_period == 20 and config.agent.config == make_agent().config
    assert resume_offline(tmp_path / "run", num_updates=40).updates == 40
    assert_same_training(state_of(tmp_path / "run"), state_of(whole))
    assert len(evaluate(tmp_path / "run", num_episodes=3)["episode_return"]) == 3


def test_without_an_environment_specs_come_from_the_data(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = datasets.write_episodes(tmp_path / "data.hdf5", EPISODES)
    result = run_offline(make_config(tmp_path / "run", dataset=path, environment=None, num_updates=20))
    assert result.evaluations == []
    resumed = resume_offline(tmp_path / "run", num_updates=40)
    assert resumed.updates == 40
    assert_same_training(state_of(tmp_path / "run"), state_of(whole))
    with pytest.raises(ConfigError, match="data alone and has no environment"):
        evaluate(tmp_path / "run")
    loaded = load(tmp_path / "run")  # Another program has nothing else: there may be no simulator.
    observations = EPISODES[0].observations
    np.testing.assert_array_equal(loaded(observations)[0], resumed.policy(observations)[0])
    with pytest.raises(ConfigError, match=r"data alone\. To play it, give an environment"):
        evaluate(loaded)
    shutil.copytree(tmp_path / "run", tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(CheckpointError, match=r"^The run .*bare has no checkpoint yet"):
        load(tmp_path / "bare")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    del record["offline"]["specs"]["rewards"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        load(tmp_path / "run")
    assert evaluate(tmp_path / "run", 1, environment="agentkit:catch")["updates"] == 40


def test_iqls_rewards_are_scaled_by_the_datas_range_of_returns() -> None:
    """Returns are then as far apart as the longest episode has steps; other agents' rewards stay."""
    episodes = offline_data.make_episodes(offline_data.POINT_MASS, 6, [0.0, 1.0])
    returns = [float(np.sum(episode.rewards)) for episode in episodes]
    factor = max(len(episode.rewards) for episode in episodes) / (max(returns) - min(returns))
    data = datasets.EpisodeData(episodes, None)
    limited = WithRateLimiter(iql.make_agent().experience, MinSize(5))
    rewards = {}
    for name, agent in {
        "scaled": iql.make_agent(),
        "limited": dataclasses.replace(iql.make_agent(), experience=limited),
        "plain": iql.make_agent(iql.Config(scale_rewards=False)),
        "td3_bc": td3_bc.make_agent(),
    }.items():
        config = OfflineConfig(agent, episodes, 1)
        items = load_dataset(config, infer_spec(episodes, None), data)[0]._items
        rewards[name] = items.take(np.arange(len(items))).reward
    np.testing.assert_allclose(rewards["scaled"], factor * rewards["plain"], rtol=1e-5)
    np.testing.assert_array_equal(rewards["limited"], rewards["scaled"])
    np.testing.assert_array_equal(rewards["td3_bc"], rewards["plain"])
    np.testing.assert_allclose(np.sum(rewards["plain"]), sum(returns), rtol=1e-4)
    alike = [episode._replace(rewards=np.ones(20)) for episode in episodes if len(episode.rewards) == 20]
    assert all(np.all(episode.rewards == 1.0) for episode in datasets.scale_rewards(alike))
    for last in (0.3, -0.3):  # With the latter, returns are of rounding errors alone.
        forth = episodes[0]._replace(rewards=np.array([0.1, 0.2, last]))
        back = episodes[0]._replace(rewards=forth.rewards[::-1])
        assert np.sum(forth.rewards) != np.sum(back.rewards)  # By the order of summation alone.
        assert datasets.find_reward_scale([forth, back]) == 1.0


def test_wrappers_for_training_only_change_what_is_learned_from() -> None:
    """They are around no environment that is learned in: evaluations go without them."""
    data = datasets.EpisodeData(EPISODES, None)
    spec = infer_spec(EPISODES, None)

    def items(*wrappers: Any) -> tuple[Any, float]:
        dataset, scale = load_dataset(make_config(wrappers=wrappers), spec, data)
        return dataset._items.take(np.arange(len(dataset))), scale

    plain, scale = items()
    assert scale == 1.0 and np.any(plain.reward) and np.any(plain.discount == 0.0)
    changed, scale = items(functools.partial(RewardScale, scale=3.0), ClipReward, TerminationsAsTruncations)
    np.testing.assert_array_equal(changed.reward, np.clip(3.0 * plain.reward, -1.0, 1.0))
    assert np.all(changed.discount == np.max(plain.discount)) and scale == 3.0
    np.testing.assert_array_equal(changed.observation, plain.observation)


@pytest.mark.full
def test_the_last_call_is_made_whole() -> None:
    config = make_config(agent=make_agent(updates_per_call=3), num_updates=4, environment=None)
    assert run_offline(config).updates == 6


def test_a_signal_saves_and_stops(tmp_path: pathlib.Path) -> None:
    config = make_config(tmp_path / "run", environment=None, log_seconds=0.0, num_updates=100_000)
    original = agentkit.experiment.offline.Learner.step

    def step(self: Any) -> None:
        original(self)
        if self.num_updates_done == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agentkit.experiment.offline.Learner, "step", step)
        result = run_offline(config)
    assert result.interrupted and result.updates == 7
    assert state_of(tmp_path / "run")["num_steps"] == 7


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_updates": 0}, ConfigError, "num_updates must be a whole number"),
        ({"num_updates": 1.5}, ConfigError, "num_updates must be a whole number"),
        ({"seed": -1}, ConfigError, "seed must be .*, found -1"),
        ({"dataset": []}, ConfigError, "found none"),
        (
            {"dataset": EPISODES[0]},
            ConfigError,
            r"dataset: expected a list of datasets.Episode, found a single one",
        ),
        ({"dataset": EPISODES[0]._asdict()}, ConfigError, "found a dictionary of observations, .*split_transitions"),
        ({"dataset": None}, ConfigError, "dataset: expected a list of datasets.Episode, found None"),
        ({"dataset": [3]}, ConfigError, "found a int in it"),
        (
            {"dataset": [EPISODES[0]._replace(observations=EPISODES[0].observations.tolist())]},
            SpecError,
            r"Lists are nests here: give np.asarray\(observations\)",
        ),
        (
            {"dataset": [EPISODES[0]._replace(actions=np.float32(EPISODES[0].actions))], "environment": None},
            SpecError,
            "found continuous actions .* Are these choices, in data of their own. Cast them to int32",
        ),
        ({"dataset": "/nowhere/data.hdf5"}, ConfigError, "There is no file /nowhere/data.hdf5"),
        ({"agent": make_agent(prioritized=True)}, ConfigError, "prioritized=False"),
        ({"agent": ppo.make_agent()}, ConfigError, "learns from transitions"),
        ({"environment": offline_data.POINT_MASS, "agent": bc.make_agent()}, SpecError, "episode 0"),
        ({"environment": offline_data.POINT_MASS}, SpecError, "found"),
    ],
)
def test_mistakes(changes: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        run_offline(make_config(**changes))


def test_a_run_folder_is_not_trained_into_again(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="has a run in it already"):
        run_offline(make_config(whole))
    with pytest.raises(ResumeError, match="agent_config"):
        run_offline(make_config(whole, agent=make_agent(cql_weight=2.0)), resume=True)
    with pytest.raises(ResumeError, match="same file"):
        run_offline(make_config(whole, dataset=EPISODES[:-1]), resume=True)
    with pytest.raises(ConfigError, match="of your own code"):
        resume_offline(whole)
    with pytest.raises(ResumeError, match="agentkit offline --resume"):
        agentkit.run(make_config(whole).as_experiment(), resume=True)


# Data out of runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of DQN with n_step=1, in two environments at a time, that stops in mid-episode."""
    directory = tmp_path_factory.mktemp("online") / "run"
    agent = dqn.make_agent(dqn.Config(**SMALL, n_step=1, min_replay_size=20, replay_size=500))
    config = agentkit.ExperimentConfig(
        agent, offline_data.CATCH, 62, num_envs=2, evaluation_period=0, run_directory=directory
    )
    agentkit.run(config)
    return directory


def test_episodes_are_recorded_with_a_runs_policy(online: pathlib.Path) -> None:
    data, again = (record_episodes(online, 5) for _ in range(2))
    explored, seeded = record_episodes(online, 5, explore=True), record_episodes(online, 5, seed=1)
    assert len(data.episodes) == 5 and data.actions == {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}
    assert all(len(episode.rewards) == 9 and episode.terminations[-1] for episode in data.episodes)
    for found, expected in zip(tree.flatten(again.episodes), tree.flatten(data.episodes), strict=True):
        np.testing.assert_array_equal(found, expected)
    for other in (explored, seeded):
        assert any(
            np.any(x != y) for x, y in zip(tree.flatten(other.episodes), tree.flatten(data.episodes), strict=True)
        )


def test_the_episodes_of_a_replay_are_those_that_were_played(online: pathlib.Path) -> None:
    """Of two environments whose steps alternate: three whole episodes each, and an unfinished one of four steps."""
    data = read_replay(online)
    lengths = sorted(len(episode.rewards) for episode in data.episodes)
    assert lengths == [3, 3, 9, 9, 9, 9, 9, 9]  # The newest step of an unfinished one is no item yet.
    for number, episode in enumerate(data.episodes):
        datasets.episodes.check_episode(episode, f"{number}")
        rows = np.argmax(episode.observations[:, :-1].max(axis=2), axis=1)
        ended = len(episode.rewards) == 9
        np.testing.assert_array_equal(rows[: -1 if ended else None], np.arange(len(rows))[: -1 if ended else None])
        moved = np.diff(np.argmax(episode.observations[:, -1], axis=1)) if not ended else np.zeros(3)
        assert np.all(np.abs(moved) <= 1)
        assert episode.terminations[-1] == ended and episode.truncations[-1] != ended
        assert np.all(episode.rewards[:-1] == 0) and (abs(episode.rewards[-1]) == 1) == ended


def test_what_a_replay_holds_can_be_learned_from(online: pathlib.Path) -> None:
    data = read_replay(online)
    assert run_offline(make_config(dataset=data.episodes, environment=None)).updates == 40


def test_rewards_that_were_summed_or_scaled_are_the_environments_own_again(tmp_path: pathlib.Path) -> None:
    agent = dqn.make_agent(dqn.Config(**SMALL, n_step=3, min_replay_size=20))
    settings: dict[str, Any] = {"wrappers": [functools.partial(RewardScale, scale=4.0)], "evaluation_period": 0}
    agentkit.run(agentkit.ExperimentConfig(agent, offline_data.CATCH, 30, run_directory=tmp_path / "run", **settings))
    episodes = read_replay(tmp_path / "run").episodes
    assert [len(episode.rewards) for episode in episodes] == [9, 9, 9, 1]  # Of the last one, one reward is known.
    for episode in episodes[:3]:
        assert np.all(np.abs(episode.rewards[:-1]) < 1e-6) and abs(episode.rewards[-1]) == pytest.approx(1.0)
        assert episode.terminations[-1]


def test_rewards_and_ends_that_cannot_be_had_back_are_warned_of(tmp_path: pathlib.Path) -> None:
    agent = dqn.make_agent(dqn.Config(**SMALL, n_step=1, min_replay_size=20))
    settings: dict[str, Any] = {"wrappers": [ClipReward, TerminationsAsTruncations], "evaluation_period": 0}
    agentkit.run(agentkit.ExperimentConfig(agent, offline_data.CATCH, 10, run_directory=tmp_path / "run", **settings))
    with pytest.warns(RuntimeWarning, match="as ClipReward, TerminationsAsTruncations may have made them"):
        episodes = read_replay(tmp_path / "run").episodes
    assert not episodes[0].terminations.any()


@pytest.mark.full
def test_sequences_are_episodes_again(tmp_path: pathlib.Path) -> None:
    config = r2d2.Config(
        hidden_sizes=(8,), core_size=4, batch_size=2, burn_in=1, sequence_length=4, sequence_period=3, n_step=1,
        min_replay_size=100,
    )  # fmt: skip
    settings: dict[str, Any] = {"evaluation_period": 0, "run_directory": tmp_path / "run"}
    agentkit.run(agentkit.ExperimentConfig(r2d2.make_agent(config), offline_data.CATCH, 30, **settings))
    *whole, _ = read_replay(tmp_path / "run").episodes
    assert [len(episode.rewards) for episode in whole] == [9, 9, 9]
    assert all(episode.terminations[-1] and abs(episode.rewards[-1]) == 1.0 for episode in whole)


@pytest.mark.parametrize(("n_step", "reach"), [(1, 3), (3, 3), (1, 0), (None, 3), (None, 0)])
def test_of_a_run_with_views_the_episodes_are_the_environments(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, n_step: int | None, reach: int
) -> None:
    """The steps before an item, which its views look at, are no steps of it; of transitions and of sequences."""
    views = {"window": View("observation", f"-{reach}:0"), "last": View("action", -1)}
    sizes: dict[str, Any] = {**SMALL, "min_replay_size": 20, "replay_size": 500}
    plain = (
        dqn.make_agent(dqn.Config(**sizes, n_step=n_step))
        if n_step
        else r2d2.make_agent(r2d2.Config(**sizes, sequence_length=4, sequence_period=3, burn_in=1))
    )
    agent = with_views(plain, views)
    config = agentkit.ExperimentConfig(agent, offline_data.CATCH, 30)
    with config.make_environment(0) as environment:
        spec = make_environment_spec(environment)
    folder = tmp_path / "checkpoints" / "step_1" / "replay"
    folder.mkdir(parents=True)
    policy = agent.make_policy(agent.make_networks(spec))
    with InProcessReplay(agent.make_tables(spec)) as replay:
        adder = agent.make_adder(replay, spec)
        for episode in EPISODES[:4]:
            datasets.add_episode(adder, episode, zeros(policy.extras_spec))
        replay.save(folder)
    found = checkpoint.Checkpoint(1, folder.parent, {})
    monkeypatch.setattr("agentkit.experiment.evaluation.record_episodes.read_config", lambda _: config)
    monkeypatch.setattr(checkpoint, "read_latest", lambda *_, **__: found)
    episodes = read_replay(tmp_path).episodes
    assert [len(episode.rewards) for episode in episodes][:3] == [9, 9, 9]
    for episode, expected in zip(episodes[:3], EPISODES, strict=False):
        for x, y in zip(tree.flatten(episode), tree.flatten(expected), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)


def test_transitions_without_discounts_do_not_tell_terminations_and_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = dqn.make_agent(dqn.Config(**SMALL, n_step=1, discount=0.0))
    config = agentkit.ExperimentConfig(agent, offline_data.CATCH, 30)
    monkeypatch.setattr("agentkit.experiment.evaluation.record_episodes.read_config", lambda _: config)
    monkeypatch.setattr(checkpoint, "read_latest", lambda *_, **__: checkpoint.Checkpoint(1, tmp_path, {}))
    with pytest.raises(ConfigError, match="have a discount of 0 everywhere"):
        read_replay(tmp_path)


def test_a_replay_on_the_device_has_no_episodes_to_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = dqn.make_agent(dqn.Config(**SMALL, n_step=1))
    config = agentkit.ExperimentConfig(agent, "jax:catch", 30, on_device=True)
    monkeypatch.setattr("agentkit.experiment.evaluation.record_episodes.read_config", lambda _: config)
    monkeypatch.setattr(checkpoint, "read_latest", lambda *_, **__: checkpoint.Checkpoint(1, tmp_path, {}))
    with pytest.raises(ConfigError, match=r"has Transitions on the device\. Record episodes instead"):
        read_replay(tmp_path)


@pytest.mark.full
def test_what_has_no_episodes_says_so(tmp_path: pathlib.Path, whole: pathlib.Path) -> None:
    settings: dict[str, Any] = {"evaluation_period": 0, "run_directory": tmp_path / "run"}
    agentkit.run(agentkit.ExperimentConfig(ppo.make_agent(), offline_data.CATCH, 10, **settings))
    with pytest.raises(ConfigError, match="has Segments in in_process"):
        read_replay(tmp_path / "run")
    with pytest.raises(CheckpointError, match="no checkpoint with a replay"):
        read_replay(whole)
    with pytest.raises(ConfigError, match="found 0"):
        record_episodes(whole, 0)


def test_configs_are_data() -> None:
    assert dataclasses.replace(make_config(), seed=3).as_experiment().seed == 3
