"""Runs with normalisation: who acts by which statistics, resuming, kinds of data, and wrappers that are refused."""

import functools

import numpy as np
import pytest

import agentkit
from agentkit import checkpoint, datasets, specs
from agentkit.agents import bc, dqn, td3
from agentkit.agents.addons import with_normalization
from agentkit.cli import main
from agentkit.cli.training.new_run import new_experiment
from agentkit.cli.words.parser import parse
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, OfflineConfig, read_config, run, run_offline, train_by_name
from agentkit.experiment.policies.export import numpy_policy
from tests.agents.addons import scaled
from tests.experiment.resumed import check_resumes
from tests.wrappers.running_mean import RunningMean

SPEC = specs.make_environment_spec(scaled.make_scaled(0))
SMALL = {"hidden_sizes": (8,), "batch_size": 8, "min_replay_size": 20}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of TD3, and what its evaluation was shown and did."""
    directory = tmp_path_factory.mktemp("normalized") / "run"
    agent = with_normalization(
        td3.make_agent(td3.Config(**SMALL, num_random_steps=20, learning_rate=1e-2)), rewards=True
    )
    run(ExperimentConfig(agent, scaled.make_told, 50, run_directory=directory, evaluation_period=0))
    scaled.Told.seen.clear()
    agentkit.evaluate(directory, 1)
    return directory, list(scaled.Told.seen)


def by_hand(directory, observations):
    """Observations normalised by the checkpoint's statistics."""
    learner = checkpoint.read_latest(directory / "checkpoints").state["learner"]
    count, mean, squares = (learner["state"][f".observations[0].{name}"] for name in ("count", "mean", "squares"))
    assert count == 8 * learner["num_updates"] > 0
    return np.float32(np.clip((observations - mean) / np.sqrt(squares / count + 1e-8), -10.0, 10.0))


@pytest.mark.full
def test_evaluation_and_a_loaded_policy_act_by_the_saved_statistics(trained):
    directory, seen = trained
    observations, actions = (np.stack(part) for part in zip(*seen, strict=True))
    policy = agentkit.load(directory)
    networks = read_config(directory).agent.make_networks(SPEC).agent
    expected = networks.policy.apply(policy.arrays.params, by_hand(directory, observations))
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    np.testing.assert_allclose(policy(observations)[0], expected, atol=1e-5)
    raw = networks.policy.apply(policy.arrays.params, observations)
    assert np.abs(raw - expected).max() > 0.1, "they matter"


@pytest.mark.full
def test_an_exported_policy_has_them_too(trained, tmp_path):
    directory, seen = trained
    observations, actions = (np.stack(part) for part in zip(*seen, strict=True))
    policy = agentkit.load(directory)
    policy.export(tmp_path / "numpy.npz", "numpy")
    np.testing.assert_allclose(numpy_policy.Policy(tmp_path / "numpy.npz")(observations)[0], actions, atol=1e-5)
    policy.save(tmp_path / "policy.npz")
    np.testing.assert_array_equal(agentkit.load(tmp_path / "policy.npz")(observations)[0], policy(observations)[0])


@pytest.mark.full
def test_it_resumes_to_the_bit_with_priorities_and_several_updates_a_call(tmp_path):
    config = dqn.Config(**SMALL, prioritized=True, updates_per_call=2, n_step=3)

    def trained(directory, num_steps, **resume):
        agent = with_normalization(dqn.make_agent(config), rewards=True)
        settings = {"run_directory": tmp_path / directory, "evaluation_period": 0, "checkpoint_period": 45}
        return run(ExperimentConfig(agent, scaled.make_discrete, num_steps, **settings), **resume)

    check_resumes(trained, tmp_path, 90)


@pytest.mark.full
def test_an_offline_agent_takes_them_from_its_data():
    environment, rng = scaled.make_scaled(0), np.random.default_rng(0)
    recorder = datasets.EpisodeRecorder()
    for _ in range(10):
        timestep = environment.reset()
        recorder.add_first(timestep)
        while not timestep.last():
            action = np.float32(rng.uniform(-1.0, 1.0, 2))
            timestep = environment.step(action)
            recorder.add(action, timestep)
    agent = with_normalization(bc.make_agent(bc.Config(hidden_sizes=(8,), batch_size=64)))
    result = run_offline(OfflineConfig(agent, recorder.episodes, 50, scaled.make_scaled, evaluation_period=0))
    (statistics,) = result.policy.arrays.statistics
    acted_on = np.concatenate([episode.observations[:-1] for episode in recorder.episodes])
    assert statistics.count == 50 * 64
    np.testing.assert_allclose(statistics.mean / scaled.SCALES, acted_on.mean(axis=0) / scaled.SCALES, atol=0.1)
    np.testing.assert_allclose(np.sqrt(statistics.squares / statistics.count), acted_on.std(axis=0), rtol=0.1)


def test_by_name_it_is_the_same_agent(tmp_path, monkeypatch, capsys):
    """On the command line, in a file for --config, and for `agentkit.train` and its kin."""
    monkeypatch.chdir(tmp_path)
    expected = with_normalization(dqn.make_agent(dqn.Config(**SMALL)), rewards=True)
    words = ["train", "dqn", "--env", "agentkit:catch", "--steps", "30", "--preset", "none", "--set", "hidden_sizes=8",
             "--set", "batch_size=8", "--set", "min_replay_size=20"]  # fmt: skip
    assert new_experiment(parse([*words, "--normalize", "observations,rewards"]), "train").agent == expected
    with pytest.raises(SystemExit):
        main([*words, "--normalize", "observations", "--normalize", "rewards", "--show-config"])
    (tmp_path / "again.toml").write_text(capsys.readouterr().out)
    assert new_experiment(parse(["train", "--config", "again.toml"]), "train").agent == expected
    plan = train_by_name.plan("dqn", "agentkit:catch", 30, SMALL, preset=None, normalize=["rewards", "observations"])
    assert plan.agent == expected


@pytest.mark.parametrize("wrapper", [RunningMean, functools.partial(RunningMean)])
def test_a_run_with_a_wrapper_that_keeps_statistics_is_refused(wrapper):
    """Else its evaluations had statistics of their own."""
    with pytest.raises(ConfigError, match=r"RunningMean has statistics of its own .* --normalize observations"):
        ExperimentConfig(td3.make_agent(), "agentkit:point_mass", 10, wrappers=[wrapper])


@pytest.mark.parametrize("num_envs", [None, 2])
def test_a_run_is_refused_whose_own_function_has_put_it_inside(num_envs, tmp_path):
    settings = {"num_envs": num_envs, "run_directory": tmp_path / "run"}
    with pytest.raises(ConfigError, match="--normalize observations"):
        run(ExperimentConfig(td3.make_agent(), scaled.make_with_own_statistics, 10, **settings))
    assert not list(tmp_path.rglob("config.json"))
