"""NaN and infinity: found within a log period, named, and never in the checkpoint that is kept."""

import dataclasses
import warnings

import dm_env
import numpy as np
import pytest

from agentkit import agents, checkpoint, datasets, envs, run, run_offline
from agentkit.cli import main
from agentkit.envs.step_check import StepCheck
from agentkit.errors import NonFiniteError, NonFiniteWarning, UnknownNameError
from agentkit.experiment import ExperimentConfig, OfflineConfig, evaluate
from agentkit.learning.finite import all_finite
from agentkit.specs import Array, make_environment_spec
from tests.experiment import faulty

pytestmark = pytest.mark.both_stacks

SMALL = {
    "dqn": {"hidden_sizes": (8,), "min_replay_size": 32, "batch_size": 8, "n_step": 1, "huber_delta": None},
    "sac": {"hidden_sizes": (8,), "min_replay_size": 32, "batch_size": 8, "num_random_steps": 40},
    "ppo": {"hidden_sizes": (8,), "segment_length": 16, "batch_size": 1, "num_minibatches": 1, "num_epochs": 1},
}
ENVIRONMENTS = {"dqn": "catch", "sac": "point_mass", "ppo": "point_mass"}


def experiment(agent, fault, directory=None, agent_settings=(), **settings):
    return ExperimentConfig(
        agents.registry.make(agent, {**SMALL[agent], **dict(agent_settings)}),
        faulty.make,
        num_steps=settings.pop("num_steps", 300),
        run_directory=directory,
        evaluation_period=0,
        checkpoint_period=100,
        environment_settings={"name": ENVIRONMENTS[agent], "fault": fault},
        **settings,
    )


def newest(directory):
    """The last checkpoint, whose every number is finite."""
    found = checkpoint.read_latest(directory / "checkpoints")
    assert all_finite(found.state["learner"]["state"])
    return found


@pytest.mark.one_case
@pytest.mark.parametrize("agent", SMALL)
def test_a_reward_ends_the_run_at_its_step_and_the_checkpoint_before_is_good(agent, tmp_path, monkeypatch):
    plan = experiment(agent, "reward nan", tmp_path)
    with pytest.raises(NonFiniteError, match=r"At step 150 the environment's reward is nan\. .*mend it there"):
        run(plan)
    assert newest(tmp_path).step == 100
    monkeypatch.setenv("MENDED", "yes")  # What is kept is good for something.
    assert run(dataclasses.replace(plan, num_steps=150), resume=True).steps == 150
    assert evaluate(tmp_path, 1)["steps"] == 150


@pytest.mark.one_case
@pytest.mark.parametrize("agent", SMALL)
def test_so_does_an_observation_in_a_batch(agent, tmp_path):
    with pytest.raises(
        NonFiniteError, match=r"At step 300 the environment's observation is nan at \[0, .*mend it there"
    ):
        run(experiment(agent, "observation nan", tmp_path, num_envs=2, num_steps=400))
    assert newest(tmp_path).step == 200


@pytest.mark.parametrize("agent", SMALL)
def test_a_huge_reward_is_found_in_the_learner_and_before_a_checkpoint(agent, tmp_path):
    for log_seconds in (0.0, 1000.0):
        directory = tmp_path / str(log_seconds)
        with pytest.raises(NonFiniteError, match=r"no longer finite.*scale"):
            run(experiment(agent, "reward huge", directory, num_steps=400, log_seconds=log_seconds))
        assert newest(directory).step >= 100


@pytest.mark.full
def test_a_bad_priority_is_named_at_once(tmp_path):
    plan = experiment("dqn", "reward inf", agent_settings={"prioritized": True}, log_seconds=1000.0, on_nan="warn")
    # Not pytest.warns: it warns again of what else was warned of, from a place that pyproject.toml does not allow.
    with warnings.catch_warnings(record=True) as found:
        warnings.filterwarnings("always", category=NonFiniteWarning)
        assert run(dataclasses.replace(plan, num_steps=250)).steps == 250
    said = [str(warning.message) for warning in found]
    assert "At step 150 the environment's reward is inf" in said[0] and "Training goes on" in said[0]
    assert any("new priorities are nan or inf" in text for text in said)


@pytest.mark.parametrize("agent", SMALL)
def test_warn_goes_on_to_the_end(agent, tmp_path):
    with warnings.catch_warnings(record=True) as found:
        warnings.filterwarnings("always", category=NonFiniteWarning)
        result = run(experiment(agent, "observation nan", tmp_path, on_nan="warn", num_steps=250, log_seconds=0.0))
    assert result.steps == 250
    first, *others = [str(warning.message) for warning in found]
    assert "At step 150 the environment's observation is nan at" in first and "Training goes on" in first
    assert sum("the training is no longer finite" in text for text in others) == 1  # Once, and not every log_seconds.
    saved = checkpoint.read_latest(tmp_path / "checkpoints")
    assert saved.step == 250
    state = saved.state["learner"]["state"]  # Parameters are NaN by now; what PPO normalises by is not.
    statistics = {name: x for name, x in state.items() if ".statistics" in name or ".returns" in name}
    assert bool(statistics) is (agent == "ppo") and all_finite(statistics)


@pytest.mark.full
def test_data_with_a_huge_reward_end_a_run_from_data(tmp_path):
    rewards = np.where(np.arange(40) == 20, 1e30, 0.0)
    ends = np.arange(40) == 39
    episode = datasets.Episode(np.ones((41, 3), np.float32), np.zeros((40, 2), np.float32), rewards, ends, ~ends & ends)
    agent = agents.registry.make("td3_bc", {"hidden_sizes": (8,), "batch_size": 32})
    config = OfflineConfig(agent, [episode], num_updates=64, run_directory=tmp_path)
    with pytest.raises(NonFiniteError, match=r"no longer finite: .*critic_loss.* at update \d+; .* numbers in .* are"):
        run_offline(config)
    assert checkpoint.read_latest(tmp_path / "checkpoints") is None
    with pytest.warns(NonFiniteWarning, match="critic_loss"):
        assert run_offline(dataclasses.replace(config, on_nan="warn"), resume=True).updates == 64


def test_the_policy_is_named_where_its_action_was_not_finite_before():
    environment = envs.make("agentkit:point_mass")
    check = StepCheck(make_environment_spec(environment))
    timestep = environment.reset()
    check(timestep)
    bad = dm_env.transition(np.float32(0), np.full(2, np.nan, np.float32))
    with pytest.raises(NonFiniteError, match=r"step 7 .* \(2 of 2 values .* parameters are no longer finite"):
        check(bad, np.full(2, np.nan, np.float32), 7)


def test_a_warning_is_said_once_of_each_leaf(recwarn):
    environment = envs.make("agentkit:point_mass")
    check = StepCheck(make_environment_spec(environment), on_nan="warn")
    for _ in range(3):
        check(dm_env.transition(np.inf, np.full(2, np.nan, np.float32)), np.zeros(2, np.float32), 1)
    assert len(recwarn.list) == 2


@pytest.mark.parametrize("kind", [np.float32, np.float64, float])
@pytest.mark.parametrize("promised", [np.float32, np.float64])
def test_an_infinite_reward_is_seen_whatever_number_it_is(promised, kind):
    spec = make_environment_spec(envs.make("agentkit:point_mass"))
    check = StepCheck(spec._replace(rewards=Array((), promised)))
    check(dm_env.transition(kind(1), np.zeros(2, np.float32)))
    with pytest.raises(NonFiniteError, match="reward is -inf"):
        check(dm_env.transition(kind("-inf"), np.zeros(2, np.float32)))


def test_numbers_whose_squares_overflow_are_finite():
    environment = envs.make("agentkit:point_mass")
    StepCheck(make_environment_spec(environment))(dm_env.transition(3e38, np.full(2, 3e38, np.float32)))


def test_the_command_line_says_it_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(envs.prefixes, "_registered", {"faulty": faulty.make_by_name})
    words = ["train", "dqn", "--env", "faulty:catch", "--steps", "200", "--eval-every", "0", "--out", str(tmp_path)]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "agentkit: At step 150 the environment's reward is nan" in error and "Traceback" not in error
    assert "--on-nan warn" in error
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # In tests, warnings are errors.
        assert main([*words, "--on-nan", "warn"]) == 0
    assert "agentkit: warning: At step 150" in capsys.readouterr().err
    assert main([*words, "--on-nan", "maybe"]) == 2


def test_another_word_is_refused():
    with pytest.raises(UnknownNameError, match=r"Unknown on_nan 'stopp'\. Did you mean 'stop'"):
        experiment("dqn", "reward nan", on_nan="stopp")


@pytest.mark.reverb
@pytest.mark.full  # A program of processes starts.
def test_a_launched_run_ends_with_the_actors_words_and_no_restart(tmp_path):
    from agentkit import launch
    from agentkit.distributed import ProgramError

    with pytest.raises(ProgramError, match=r"actor-0 .*the environment's reward is nan") as error:
        launch(experiment("dqn", "reward nan", tmp_path, num_steps=100_000), num_actors=1, num_evaluators=0)
    assert "restart" not in str(error.value)
    learned = checkpoint.read_latest(tmp_path / "checkpoints")
    assert learned is None or all_finite(learned.state["learner"]["state"])
