"""Training in one process: exact step counts, determinism, evaluation on the side, resuming, refusals."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import numpy as np
import pytest

import agentkit
from agentkit import checkpoint, envs
from agentkit.agents import discrete_cql, dqn, sac
from agentkit.callbacks import keep_best
from agentkit.envs.catch import Catch
from agentkit.errors import CheckpointError, ConfigError, SpecError, UnknownNameError
from agentkit.experiment import (
    ChangedCodeWarning,
    ExperimentConfig,
    OfflineConfig,
    Profile,
    Result,
    read_config,
    resume,
    run,
)
from agentkit.learning import Linear
from agentkit.loggers import read_csv
from tests.agents import offline_data

pytestmark = pytest.mark.both_stacks

MIN_SIZE = 20


def make_agent(**settings: Any) -> Any:
    small = {
        "hidden_sizes": (16,),
        "batch_size": 8,
        "updates_per_step": 1.0,
        "n_step": 3,
        "min_replay_size": MIN_SIZE,
        "replay_size": 500,
        "target_update_period": 10,
        "epsilon": Linear(1.0, 0.05, 40),
    }
    return dqn.make_agent(dqn.Config(**{**small, **settings}))


def make_experiment(**settings: Any) -> ExperimentConfig:
    quiet = {"agent": make_agent(), "environment": "agentkit:catch", "num_steps": 100, "evaluation_period": 0}
    return ExperimentConfig(**{**quiet, **settings})


class Ended(NamedTuple):
    """What a run left behind: its result, last checkpoint, replay files and training log."""

    result: Result
    state: dict[str, Any]
    replay: dict[str, Any]
    episodes: list[tuple[str, ...]]


def contents(path: pathlib.Path) -> Any:
    """A replay file's content; the JSON file lists the writers in no particular order."""
    if path.suffix != ".json":
        return path.read_bytes()

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(child) for key, child in value.items()}
        if isinstance(value, list) and value and all(isinstance(child, dict) for child in value):
            return sorted(map(ordered, value), key=json.dumps)
        return value

    return ordered(json.loads(path.read_text()))


def ended(result: Result, directory: pathlib.Path) -> Ended:
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None and found.step == result.steps
    folder = found.path / "replay"
    files = {str(p.relative_to(folder)): contents(p) for p in folder.rglob("*") if p.is_file()}
    _, rows = read_csv(directory / "logs" / "train.csv")
    columns = ("steps", "episodes", "episode_return", "episode_length")
    return Ended(result, found.state, files, [tuple(row[name] for name in columns) for row in rows])


def train(directory: pathlib.Path, **settings: Any) -> Ended:
    return ended(run(make_experiment(run_directory=directory, **settings)), directory)


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    """Bit for bit, bar what says how the experiment was asked for."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for name in expected.keys() - {"experiment"}:
            assert_same(found[name], expected[name], f"{path}/{name}")
    else:
        np.testing.assert_array_equal(found, expected, err_msg=path)


def assert_same_end(found: Ended, expected: Ended) -> None:
    assert_same(found.state, expected.state)
    assert found.replay == expected.replay and expected.replay
    assert found.episodes == expected.episodes and expected.episodes
    assert found.result.updates == expected.result.updates > 0


def parameters(found: Ended) -> dict[str, np.ndarray]:
    return found.state["learner"]["state"]


class Recorder:
    """A factory of Catch environments that notes who was made, reset, stepped and closed."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, seed: int) -> Any:
        recorder = self

        class Watched:
            def __init__(self) -> None:
                self.environment = envs.make("agentkit:catch", seed=seed)
                self.seed = seed
                self.actions: list[int] = []
                self.num_closed = 0
                recorder.made.append(self)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.environment, name)

            def step(self, action: Any) -> Any:
                self.actions.append(int(action))
                return self.environment.step(action)

            def close(self) -> None:
                self.num_closed += 1
                self.environment.close()

        return Watched()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """100 steps with seed 0, uninterrupted. An episode of Catch has 9 steps: it ends in mid-episode."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    return train(directory, log_seconds=0.0)


# --- how many steps and updates ----------------------------------------------------------------------


@pytest.mark.full
def test_a_single_environment_takes_exactly_the_steps_asked_for() -> None:
    recorder = Recorder()
    result = run(make_experiment(environment=recorder, num_steps=103))
    assert result.steps == 103 and not result.interrupted and result.evaluations == []
    (environment,) = recorder.made
    assert len(environment.actions) == 103 and environment.num_closed == 1


def test_a_batch_stops_at_the_first_call_that_reaches_the_steps() -> None:
    recorder = Recorder()
    result = run(make_experiment(environment=recorder, num_steps=102, num_envs=4))
    assert 102 <= result.steps < 102 + 4
    assert len({environment.seed for environment in recorder.made}) == 4
    assert [environment.num_closed for environment in recorder.made] == [1] * 4
    # A call that resets an environment steps it without counting: at most one for each finished episode.
    calls = {len(environment.actions) for environment in recorder.made}
    assert len(calls) == 1 and 102 <= 4 * calls.pop() <= result.steps + 4 * (result.steps // 36 + 1)


@pytest.mark.parametrize(("updates_per_step", "updates_per_call"), [(1.0, 1), (0.25, 1), (2.0, 1), (1.0, 4)])
def test_updates_keep_pace_with_steps(updates_per_step: float, updates_per_call: int) -> None:
    agent = make_agent(n_step=1, updates_per_step=updates_per_step, updates_per_call=updates_per_call)
    result = run(make_experiment(agent=agent, num_steps=200))
    assert result.updates % updates_per_call == 0
    # The last step of an unfinished episode is no item yet; the learner may be two calls ahead.
    due = (200 - MIN_SIZE) * updates_per_step
    ahead = 2 * max(updates_per_call, updates_per_step)
    assert due - updates_per_step - updates_per_call < result.updates <= due + ahead


# --- determinism -------------------------------------------------------------------------------------


def test_equal_seeds_are_equal_bit_for_bit(whole: Ended, tmp_path: pathlib.Path) -> None:
    assert_same_end(train(tmp_path / "run"), whole)


def test_different_seeds_differ_in_parameters_and_actions(tmp_path: pathlib.Path) -> None:
    found, actions = [], []
    for seed in (0, 1):
        recorder = Recorder()
        found.append(train(tmp_path / str(seed), environment=recorder, seed=seed))
        actions.append(recorder.made[0].actions)
    assert actions[0] != actions[1]
    first, second = map(parameters, found)
    weights = [name for name, leaf in first.items() if leaf.ndim == 2]
    assert len(weights) >= 4 and all(np.any(first[name] != second[name]) for name in weights)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_evaluation_comes_when_asked_and_changes_nothing(num_envs: int | None, tmp_path: pathlib.Path) -> None:
    with_it, without = Recorder(), Recorder()
    settings = {"num_envs": num_envs, "num_steps": 100}
    expected = train(tmp_path / "without", environment=without, **settings)
    found = train(tmp_path / "with", environment=with_it, evaluation_period=30, evaluation_episodes=2, **settings)
    assert_same_end(found, expected)

    steps = [record["steps"] for record in found.result.evaluations]
    assert len(steps) == 3 and all(0 <= s - 30 * (i + 1) < (num_envs or 1) for i, s in enumerate(steps))
    _, rows = read_csv(tmp_path / "with" / "logs" / "evaluation.csv")
    assert [int(row["steps"]) for row in rows] == steps
    assert all(int(row["evaluation_episodes"]) == 2 for row in rows)

    assert len(with_it.made) == len(without.made) + 1
    *training, evaluation = with_it.made
    assert [e.actions for e in training] == [e.actions for e in without.made]
    assert len(evaluation.actions) == 3 * 2 * 9 and evaluation.num_closed == 1
    assert evaluation.seed not in {e.seed for e in training}


def test_an_environment_without_reseed_is_made_anew_for_each_evaluation() -> None:
    class Plain:
        def __init__(self, seed: int) -> None:
            self._inner, self.seed, self.num_closed = Catch(seed=seed), seed, 0
            made.append(self)

        def __getattr__(self, name: str) -> Any:
            if name in ("reseed", "save", "restore") or name.startswith("_"):
                raise AttributeError(name)
            return getattr(self._inner, name)

        def close(self) -> None:
            self.num_closed += 1

    made: list[Plain] = []
    seeds = []
    for _ in range(2):
        made.clear()
        run(make_experiment(environment=Plain, num_steps=60, evaluation_period=30, evaluation_episodes=1))
        assert [plain.num_closed for plain in made] == [1] * len(made)
        seeds.append([plain.seed for plain in made])
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == len(seeds[0])


# --- resuming ----------------------------------------------------------------------------------------


class Unrepeatable:
    """Cannot be saved in mid-episode."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        if name in ("reseed", "save", "restore") or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._environment, name)


def test_steps_of_an_episode_that_is_dropped_are_counted_in_all_logs(tmp_path: pathlib.Path) -> None:
    """Catch's episodes have 9 steps."""
    settings = {"environment": lambda seed: Unrepeatable(Catch(seed=seed)), "run_directory": tmp_path / "run"}
    run(make_experiment(**settings, num_steps=60))
    run(make_experiment(**settings, num_steps=100), resume=True)
    _, rows = read_csv(tmp_path / "run" / "logs" / "train.csv")
    assert [int(row["steps"]) for row in rows] == [*range(9, 60, 9), *range(69, 100, 9)]


def test_a_finished_run_goes_on_as_one_longer_run(whole: Ended, tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "run"
    half = train(directory, num_steps=60)
    assert half.state["loop"]["unfinished"], "60 is no multiple of 9: this stops in mid-episode"
    assert half.result.updates < whole.result.updates
    result = run(make_experiment(run_directory=directory, num_steps=100), resume=True)
    assert_same_end(ended(result, directory), whole)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "settings",
    [
        {"num_envs": 3},
        {"agent": make_agent(updates_per_call=4, prioritized=True)},
        {
            "agent": sac.make_agent(sac.Config(hidden_sizes=(16,), batch_size=8, min_replay_size=MIN_SIZE)),
            "environment": "agentkit:point_mass",
        },
    ],
    ids=["batched", "prioritized, 4 updates per call", "sac"],
)
def test_other_runs_resume_bit_for_bit_too(settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    expected = train(tmp_path / "whole", **settings)
    train(tmp_path / "run", **settings, num_steps=50)
    result = resume(tmp_path / "run", num_steps=100)  # By its config.json alone.
    assert_same_end(ended(result, tmp_path / "run"), expected)


def test_a_resumed_run_is_evaluated_as_an_uninterrupted_one(tmp_path: pathlib.Path) -> None:
    """An evaluation depends on its step and the parameters, and on no evaluation before."""
    agent = sac.make_agent(sac.Config(hidden_sizes=(16,), batch_size=8, min_replay_size=MIN_SIZE))
    settings = {"agent": agent, "environment": "agentkit:point_mass", "evaluation_period": 20}
    expected = train(tmp_path / "whole", **settings, num_steps=60, evaluation_episodes=2).result.evaluations
    train(tmp_path / "run", **settings, num_steps=40, evaluation_episodes=2)
    assert resume(tmp_path / "run", num_steps=60).evaluations == expected[-1:]
    assert len({record["episode_return"] for record in expected}) == 3


def test_stopped_between_checkpoints_it_repeats_what_was_lost(whole: Ended, tmp_path: pathlib.Path) -> None:
    class PowerCutError(Exception):
        pass

    def factory(seed: int) -> Any:
        environment = envs.make("agentkit:catch", seed=seed)
        step, count = environment.step, iter(range(88))

        def breaking(action: Any) -> Any:
            if next(count, None) is None:
                raise PowerCutError
            return step(action)

        environment.step = breaking
        return environment

    directory = tmp_path / "run"
    settings = {"run_directory": directory, "checkpoint_period": 25}
    with pytest.raises(PowerCutError):
        run(make_experiment(environment=factory, **settings))
    _, rows = read_csv(directory / "logs" / "train.csv")
    assert int(rows[-1]["steps"]) == 81, "an episode that the checkpoint of step 75 has not seen the end of"
    experiment = make_experiment(environment=lambda seed: envs.make("agentkit:catch", seed=seed), **settings)
    with pytest.warns(ChangedCodeWarning, match="cannot be compared"):
        result = run(experiment, resume=True)
    assert_same_end(ended(result, directory), whole)


def test_resuming_where_there_is_no_checkpoint_starts_anew(whole: Ended, tmp_path: pathlib.Path) -> None:
    result = run(make_experiment(run_directory=tmp_path / "run"), resume=True)
    assert_same_end(ended(result, tmp_path / "run"), whole)


def test_resuming_what_is_done_does_nothing(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(tmp_path / "run", num_steps=40)
    before = sorted(str(p) for p in (tmp_path / "run" / "checkpoints").rglob("*"))
    again = run(make_experiment(run_directory=tmp_path / "run", num_steps=40, progress=True), resume=True)
    assert "Nothing to train: the run is at step 40 already." in capsys.readouterr().err
    assert again == dataclasses.replace(first.result, evaluations=[])
    assert before == sorted(str(p) for p in (tmp_path / "run" / "checkpoints").rglob("*"))


def test_a_server_for_many_processes_is_refused_in_one(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"agentkit launch.*replay='in_process'"):
        run(make_experiment(run_directory=tmp_path / "run", num_steps=50, replay="served"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"agent": make_agent(learning_rate=1e-2)}, "agent_config"),
        ({"agent": make_agent(hidden_sizes=(8,))}, "agent_config"),
        ({"seed": 1}, "seed"),
        ({"environment": "agentkit:deep_sea"}, "environment"),
        ({"environment": lambda seed: Catch(seed=seed)}, "environment"),
        ({"num_envs": 2}, "num_envs"),
        ({"replay": "reverb"}, "replay"),
        (
            {"agent": sac.make_agent(), "environment": "agentkit:point_mass"},
            "agent",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_resuming_another_experiment_is_refused(changes: dict[str, Any], field: str, finished: pathlib.Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=rf"made with {field}[.\w]*=.*this experiment has") as caught:
        run(make_experiment(run_directory=finished, num_steps=50, **changes), resume=True)
    assert isinstance(caught.value, ConfigError), "so that the command line says it in one line"
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of a finished run of 40 steps. Nobody changes it."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    run(make_experiment(run_directory=directory, num_steps=40))
    return directory


def test_a_folder_with_a_run_is_not_written_over(finished: pathlib.Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"has a run in it already.*resume=True"):
        run(make_experiment(run_directory=finished))
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


# --- the run folder ----------------------------------------------------------------------------------


def test_without_a_run_folder_nothing_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(make_experiment(num_steps=40, evaluation_period=20, evaluation_episodes=1, checkpoint_period=10))
    assert list(tmp_path.iterdir()) == []


class Wandering(Catch):
    """Changes the working directory when it is made, and again at each episode."""

    def __init__(self, elsewhere: pathlib.Path, **kwargs: Any):
        super().__init__(**kwargs)
        self._elsewhere = elsewhere
        os.chdir(elsewhere / "made")

    def reset(self) -> dm_env.TimeStep:
        os.chdir(self._elsewhere / "reset")
        return super().reset()


@pytest.mark.parametrize("how", ["run", "profile", "offline"])
def test_a_relative_run_folder_stays_where_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("made", "reset"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
    periods = {"evaluation_period": 20, "evaluation_episodes": 1, "checkpoint_period": 20}
    settings: dict[str, Any] = {"run_directory": "runs/mine", "callbacks": [keep_best()], **periods}
    settings["environment"] = functools.partial(Wandering, tmp_path / "elsewhere")
    if how == "offline":
        agent = discrete_cql.make_agent(discrete_cql.Config(hidden_sizes=(8,), batch_size=8))
        dataset = offline_data.make_episodes(offline_data.CATCH, 20, [0.5])
        result = agentkit.run_offline(OfflineConfig(agent, dataset, 40, **settings))
    else:
        profile = Profile() if how == "profile" else None
        result = run(make_experiment(**{"num_steps": 40, **settings}), profile=profile)
        assert (tmp_path / "runs/mine/logs/profile.csv").exists() == (how == "profile")
    assert [path.name for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()] == []
    assert checkpoint.steps(tmp_path / "runs/mine/checkpoints") == [20, 40]
    assert {"best", "config.json", "lock", "logs"} < {path.name for path in (tmp_path / "runs/mine").iterdir()}
    assert result.best_policy is not None
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^runs/mine has a run in it already"):
        run(make_experiment(**{"num_steps": 40, **settings}))


def test_a_run_goes_on_where_the_working_directory_is_gone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    run(make_experiment(num_steps=10, run_directory=tmp_path / "mine", progress=True))
    assert f"Run folder: {tmp_path}/mine\n" in capsys.readouterr().out


def test_the_folder_is_shown_as_it_was_given(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(make_experiment(num_steps=10, run_directory="runs/mine", progress=True))
    assert "Run folder: runs/mine\n" in capsys.readouterr().out


def test_the_logs_have_the_columns_promised(whole: Ended, tmp_path: pathlib.Path) -> None:
    settings = {"num_steps": 60, "evaluation_period": 30, "evaluation_episodes": 2, "log_seconds": 0.0}
    run(make_experiment(run_directory=tmp_path / "run", tensorboard=True, **settings))
    logs = tmp_path / "run" / "logs"
    columns, rows = read_csv(logs / "train.csv")
    assert columns == ["steps", "episodes", "episode_return", "episode_length", "steps_per_second", "seconds"]
    assert [(int(row["steps"]), int(row["episodes"])) for row in rows] == [(9 * i, i) for i in range(1, 7)]
    columns, _ = read_csv(logs / "evaluation.csv")
    returns = ["episode_return", "episode_return_min", "episode_return_max", "episode_length"]
    assert columns == ["steps", "updates", *returns, "evaluation_episodes", "seconds"]
    columns, rows = read_csv(logs / "learner.csv")
    assert columns[:3] == ["steps", "updates", "updates_per_second"]
    assert {"loss", "replay_size", "samples_per_insert"} <= set(columns)
    assert [int(float(row["updates"])) for row in rows] == list(range(1, len(rows) + 1))
    assert all(0 < int(row["steps"]) <= 60 for row in rows)
    assert list((logs / "tensorboard").glob("events*"))


def test_the_config_says_what_was_run(finished: pathlib.Path) -> None:
    record = json.loads((finished / "config.json").read_text())
    assert record["agent"] == "dqn" and record["environment"] == "agentkit:catch" and record["seed"] == 0
    assert record["agent_config"]["batch_size"] == 8
    assert {"python", "jax", "numpy", "dm-haiku"} <= record["versions"].keys()
    experiment = read_config(finished, num_steps=70)
    assert experiment.agent.config == make_agent().config
    expected = make_experiment(num_steps=70, run_directory=finished, agent=experiment.agent)
    assert experiment == expected


def test_numpy_numbers_and_functions_in_settings_are_written_plainly(tmp_path: pathlib.Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Config(dqn.Config):
        activation: Callable = np.tanh
        shape: Callable = make_agent

    plain = make_agent(learning_rate=np.float32(1e-3))
    agent = dataclasses.replace(plain, config=Config(**vars(plain.config)))
    settings = {"agent": agent, "run_directory": tmp_path / "run", "seed": np.int64(3)}
    run(make_experiment(num_steps=np.int64(40), **settings))
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["num_steps"] == 40 and record["seed"] == 3
    assert record["agent_config"]["learning_rate"] == pytest.approx(1e-3)
    assert record["agent_config"]["shape"]["function"].endswith(":make_agent")
    assert run(make_experiment(num_steps=50, **settings), resume=True).steps == 50


def test_a_run_of_the_users_own_code_is_resumed_by_that_code(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run", environment=lambda seed: Catch(seed=seed), num_steps=40)
    with pytest.raises(ConfigError, match=r"your own code.*resume=True"):
        resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"agent": "dq', "is damaged"), (None, "not a run folder: it has no config.json")],
)
def test_a_broken_config_is_refused(text: str | None, message: str, tmp_path: pathlib.Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        resume(tmp_path)


def test_settings_of_another_version_are_refused(finished: pathlib.Path, tmp_path: pathlib.Path) -> None:
    record = json.loads((finished / "config.json").read_text())
    record["agent_config"]["momentum"] = 0.9
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"'dqn'.*does not know.*momentum.*Use the version of agentkit"):
        resume(tmp_path)


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_steps": 0}, ConfigError, "num_steps must be a whole number of at least 1, found 0"),
        ({"num_steps": 1e5}, ConfigError, "num_steps must be a whole number"),
        ({"num_steps": True}, ConfigError, "num_steps must be a whole number"),
        ({"seed": None}, ConfigError, "seed must be a whole number"),
        ({"seed": -1}, ConfigError, "seed must be .*, found -1"),
        ({"seed": 2**31}, ConfigError, r"seed must be a whole number in \[0, 2\*\*31\), found"),
        ({"num_envs": 0}, ConfigError, "num_envs must be a whole number of at least 1, found 0"),
        ({"evaluation_period": -5}, ConfigError, "evaluation_period must be .* at least 0, found -5"),
        (
            {"evaluation_period": 5, "evaluation_episodes": 0},
            ConfigError,
            "evaluation_episodes must be .* at least 1, found 0",
        ),
        ({"checkpoint_period": -1}, ConfigError, "checkpoint_period must be .* at least 0, found -1"),
        ({"log_seconds": float("nan")}, ConfigError, "log_seconds must be at least 0 and finite, found nan"),
        ({"replay": "in_procces"}, UnknownNameError, "Did you mean 'in_process'"),
        ({"environment": "agentkit:cach"}, UnknownNameError, "Did you mean 'agentkit:catch'"),
        ({"environment": "agentkit:point_mass"}, SpecError, "DiscreteArray"),
        ({"environment": lambda seed: object()}, (ConfigError, SpecError), "dm_env"),
        ({"agent": make_agent(replay_size=4)}, ConfigError, "4"),
        ({"agent": "dqn"}, ConfigError, r"Expected an Agent, e\.g\. dqn\.make_agent\(\).*found 'dqn' \(str\)"),
        ({"agent": None}, ConfigError, r"Expected an Agent.*found None \(NoneType\)"),
        ({"agent": dqn.make_agent}, ConfigError, r"found <function make_agent .*\(function\)"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        run(make_experiment(**settings))


def test_to_resume_there_must_be_a_folder() -> None:
    with pytest.raises(ConfigError, match="needs the run_directory"):
        run(make_experiment(), resume=True)
