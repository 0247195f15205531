"""The profile of a run: rows that add up to its wall time, the right bottleneck, and nothing left behind."""

import csv
import dataclasses
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs
from agentkit.actors import Policy
from agentkit.agents import dqn, ppo
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, Profile, local, resume, run
from agentkit.experiment.checks.stand_in import StandIn
from agentkit.experiment.profiling import table
from agentkit.experiment.profiling.profile import ONCE, PARTS, TimedDataset, Timer

PAUSE = 0.005


def make_agent(**settings: Any) -> Any:
    small = {"hidden_sizes": (16,), "batch_size": 8, "updates_per_step": 1.0, "min_replay_size": 20, "n_step": 1}
    return dqn.make_agent(dqn.Config(**{**small, **settings}))


def make_experiment(**settings: Any) -> ExperimentConfig:
    quiet = {"agent": make_agent(), "environment": "agentkit:catch", "num_steps": 200, "evaluation_period": 0}
    return ExperimentConfig(**{**quiet, **settings})


def profiled(*, resumed: bool = False, **settings: Any) -> tuple[Profile, float]:
    """The profile of a small run, and the seconds that the call took."""
    profile = Profile()
    start = time.perf_counter()
    run(make_experiment(**settings), resume=resumed, profile=profile)
    return profile, time.perf_counter() - start


def seconds_of(profile: Profile) -> dict[str, float]:
    return {row.part: row.seconds for row in profile.rows()}


def calls_of(profile: Profile) -> dict[str, int]:
    return {row.part: row.calls for row in profile.rows()}


def assert_adds_up(profile: Profile, wall: float) -> None:
    rows = profile.rows()
    assert [row.part for row in rows] == [*ONCE, *PARTS]
    assert all(row.seconds >= 0 for row in rows)
    assert sum(row.seconds for row in rows) == pytest.approx(wall, rel=0.02)
    assert sum(row.share for row in rows) == pytest.approx(1)
    stepwise = sum(row.seconds for row in rows if row.part in PARTS)
    assert sum(row.microseconds_per_step for row in rows) == pytest.approx(1e6 * stepwise / profile.num_steps)


def sleep_in(values: Any) -> Any:
    """`values`, after a pause on the device: JAX computes nothing that depends on it before."""

    def pause(x: Any) -> Any:
        time.sleep(PAUSE)
        return np.asarray(x)

    return jax.pure_callback(pause, jax.ShapeDtypeStruct(values.shape, values.dtype), values)


def slow_policy(networks: Any, config: Any, evaluation: bool = False) -> Policy:
    policy = dqn.make_policy(networks, config, evaluation)

    def act(params: Any, key: Any, observation: Any, state: Any) -> Any:
        action, state, extras = policy.act(params, key, observation, state)
        return sleep_in(action), state, extras

    return policy._replace(act=act)


def slow_loss(networks: Any, config: dqn.Config) -> Any:
    loss = dqn.make_loss(networks, config)

    def slow(*args: Any) -> Any:
        output = loss(*args)
        return output._replace(metrics={**output.metrics, "pause": sleep_in(jax.lax.stop_gradient(output.loss))})

    return slow


def slow_environment(seed: int) -> Any:
    class Slow:
        def __init__(self) -> None:
            self._environment = envs.make("agentkit:catch", seed=seed)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._environment, name)

        def step(self, action: Any) -> Any:
            time.sleep(PAUSE)
            return self._environment.step(action)

    return Slow()


PPO = ppo.Config(hidden_sizes=(16,), segment_length=8, num_epochs=1, num_minibatches=1)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_envs": 3, "num_steps": 600},
        {"agent": make_agent(prioritized=True, updates_per_call=2)},
        {"agent": ppo.make_agent(PPO), "num_envs": 2},
        # Of an agent of its own: what the first case has compiled is not compiled again.
        pytest.param({"agent": make_agent(discount=0.9), "replay": "reverb"}, marks=pytest.mark.reverb),
    ],
    ids=["one", "batched", "prioritized", "ppo", "reverb"],
)
def test_the_rows_add_up_to_the_wall_time(settings, tmp_path):
    profile, wall = profiled(run_directory=tmp_path, checkpoint_period=100, **settings)
    assert_adds_up(profile, wall)
    calls, seconds = calls_of(profile), seconds_of(profile)
    assert profile.num_steps >= 200 and profile.num_updates > 0
    num_envs = settings.get("num_envs", 1)
    assert calls["environment"] == calls["acting"] == calls["adding"] >= profile.num_steps / num_envs
    per_call = settings["agent"].batch_plan.num_updates if "agent" in settings else 1
    assert calls["update"] == profile.num_updates / per_call
    assert calls["saving"] >= 2
    spent = ("environment", "acting", "adding", "update", "waiting", "saving", "starting", "compiling", "rest")
    assert {part for part in spent if seconds[part] == 0} == set()
    assert seconds["sampling"] + seconds["waiting"] > 0 and seconds["tracing"] == seconds["evaluation"] == 0


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("part", "settings", "advice"),
    [
        ("environment", {"environment": slow_environment}, "agentkit launch --actors"),
        ("acting", {"agent": dqn.make_agent(make_agent().config, make_policy=slow_policy)}, "--num-envs"),
        ("update", {"agent": dqn.make_agent(make_agent().config, make_loss=slow_loss)}, "updates_per_call"),
    ],
)
def test_what_is_slow_is_the_bottleneck(part, settings, advice):
    profile, wall = profiled(**settings)
    assert_adds_up(profile, wall)
    row = next(row for row in profile.rows() if row.part == part)
    assert row.share == max(row.share for row in profile.rows())
    assert row.microseconds_per_call > 1e6 * PAUSE
    text = table.bottleneck(profile, make_experiment(**settings).agent)
    assert text.startswith(f"Bottleneck: {part}.") and advice in text


def test_updates_are_waited_for(monkeypatch):
    """A computation that goes on after the call has returned is the update's, not the next action's."""
    waited_for = []

    def wait(state: Any) -> None:
        waited_for.append(state)
        time.sleep(PAUSE)

    monkeypatch.setattr(jax, "block_until_ready", wait)
    profile, wall = profiled()
    assert_adds_up(profile, wall)
    assert len(waited_for) == profile.num_updates
    assert profile.blocked_seconds > PAUSE * profile.num_updates
    assert seconds_of(profile)["update"] > profile.blocked_seconds
    assert "waited for" in table.describe(profile)


def test_evaluations_are_told_apart():
    profile, wall = profiled(evaluation_period=100, evaluation_episodes=3)
    assert_adds_up(profile, wall)
    assert calls_of(profile)["evaluation"] == 2 and calls_of(profile)["environment"] == profile.num_steps == 200


def test_compilations_are_in_no_part():
    @jax.jit
    def inner(x: Any) -> Any:
        return jnp.linalg.qr(x)[0] + jax.random.normal(jax.random.PRNGKey(1), x.shape)

    profile = Profile()
    profile.start()
    try:
        timer, before = profile._timer, time.perf_counter()
        timer.enter("acting")
        start = time.perf_counter()
        jax.jit(lambda x: jnp.sort(inner(jnp.sin(x)), axis=0))(jnp.ones((7, 7))).block_until_ready()
        wall = time.perf_counter() - start
        timer.leave()
        around = time.perf_counter() - before
        timer.enter("update")
        time.sleep(0.02)
        timer.leave()
    finally:
        profile.stop()
    seconds = seconds_of(profile)
    assert 0.7 * wall < seconds["compiling"] < wall
    assert wall <= seconds["acting"] + seconds["compiling"] <= around
    assert seconds["update"] >= 0.02


def test_compilations_within_one_another_count_once(monkeypatch):
    clock = types.SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("agentkit.experiment.profiling.profile.time", clock)
    timer = Timer()
    timer.enter("acting")
    clock.now = 2.0
    timer.add_compilation(1.0)  # Inside the one that ends next.
    clock.now = 3.0
    timer.add_compilation(2.5)
    clock.now = 4.0
    timer.leave()
    assert (timer.seconds["compiling"], timer.seconds["acting"]) == (2.5, 1.5)
    timer.enter("acting")
    clock.now = 5.0
    timer.add_compilation(1000.0)  # Longer than it has run: it began before, or a timer is off.
    clock.now = 7.0
    timer.leave()
    assert (timer.seconds["compiling"], timer.seconds["acting"]) == (3.5, 3.5)


def test_a_run_without_a_profile_has_the_parts_themselves(monkeypatch):
    made: list[Any] = []
    build = local._build
    monkeypatch.setattr(local, "_build", lambda *args, **named: made.append(build(*args, **named)) or made[-1])
    for profile in (None, Profile()):
        run(make_experiment(num_steps=30, step_timeout=0.0), profile=profile)
    plain, timed = made
    stand_ins = {StandIn, TimedDataset}
    for name in ("replay", "dataset", "actor", "learner"):
        assert type(getattr(timed.work, name)) in stand_ins, name
        assert type(getattr(plain.work, name)) not in stand_ins, name
    assert type(timed.logs) is StandIn and type(plain.logs) is not StandIn
    assert type(timed.work.loop._environment) is StandIn and type(plain.work.loop._environment) is not StandIn
    assert plain.timer is None and timed.timer is not None


def test_a_profile_changes_nothing_that_is_learned(tmp_path):
    ends = [
        run(make_experiment(run_directory=tmp_path / name), profile=profile)
        for name, profile in (("plain", None), ("watched", Profile()))
    ]
    assert ends[0] == ends[1]
    rows = [(tmp_path / name / "logs" / "train.csv").read_text().splitlines() for name in ("plain", "watched")]
    kept = [[line.split(",")[:4] for line in lines] for lines in rows]
    assert kept[0] == kept[1] and len(kept[0]) > 10


@pytest.mark.full
def test_a_resumed_run_has_a_table_of_its_own(tmp_path):
    experiment = make_experiment(environment="agentkit:deep_sea", run_directory=tmp_path)
    run(dataclasses.replace(experiment, num_steps=105))
    profile = Profile()
    start = time.perf_counter()
    run(experiment, resume=True, profile=profile)
    assert_adds_up(profile, time.perf_counter() - start)
    # The steps that put the environment back in mid-episode are part of the start.
    assert profile.num_steps == calls_of(profile)["environment"] == 95
    with (tmp_path / "logs" / "profile.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["part"] for row in rows] == [*ONCE, *PARTS] and {row["steps"] for row in rows} == {"95"}
    for row, found in zip(rows, profile.rows(), strict=True):
        assert float(row["seconds"]) == found.seconds and int(row["calls"]) == found.calls


def test_a_stored_run_can_be_resumed_with_a_profile(tmp_path):
    run(make_experiment(num_steps=50, run_directory=tmp_path))
    profile = Profile()
    resume(tmp_path, profile=profile, num_steps=80)
    assert profile.num_steps == 30


def test_a_jax_trace(tmp_path):
    profile = Profile(tmp_path / "trace", trace_steps=20)
    run(make_experiment(), profile=profile)
    assert profile.traced and seconds_of(profile)["tracing"] > 0
    files = [path for path in (tmp_path / "trace").rglob("*") if path.is_file()]
    assert any(path.name.endswith(".xplane.pb") for path in files)
    assert any(path.name.endswith(".trace.json.gz") for path in files)
    assert all(path.stat().st_size for path in files)
    assert str(tmp_path / "trace") in table.describe(profile)


def test_a_trace_ends_with_the_run(tmp_path):
    for name in ("a", "b"):  # The second would not start if the first were still going on.
        profile = Profile(tmp_path / name, trace_steps=10**6)
        run(make_experiment(num_steps=60), profile=profile)
        assert profile.traced and any((tmp_path / name).rglob("*.pb"))


def test_without_learning_there_is_no_trace(tmp_path):
    profile = Profile(tmp_path / "trace")
    run(make_experiment(num_steps=10), profile=profile)
    text = table.describe(profile)
    assert not profile.traced and not (tmp_path / "trace").exists()
    assert "no JAX trace" in text and "Learning had not begun" in text


def test_an_even_profile_has_no_bottleneck():
    profile = Profile()
    profile._timer, profile.num_steps = Timer(), 10
    profile._timer.seconds.update(dict.fromkeys(PARTS, 1.0))
    assert table.bottleneck(profile).startswith("No bottleneck: no part takes more than environment, 10%")


def test_a_run_that_fails_leaves_the_earlier_table(tmp_path):
    run(make_experiment(num_steps=30, run_directory=tmp_path), profile=Profile())
    before = (tmp_path / "logs" / "profile.csv").read_text()
    refused = Profile()
    with pytest.raises(ConfigError, match="has a run in it already"):
        run(make_experiment(num_steps=30, run_directory=tmp_path), profile=refused)
    assert refused.num_steps == 0 and "no step was taken" in table.describe(refused)
    assert (tmp_path / "logs" / "profile.csv").read_text() == before


def test_bad_profiles_are_refused():
    profile, _ = profiled(num_steps=30)
    with pytest.raises(ConfigError, match="make a new one for each run"):
        run(make_experiment(), profile=profile)
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        Profile(trace_steps=0)


def test_an_environment_of_slots_can_be_profiled():
    class Slotted:
        __slots__ = ("inner",)

        def __init__(self, seed: int) -> None:
            self.inner = envs.make("agentkit:catch", seed=seed, raw=True)

        def __getattr__(self, name: str) -> Any:
            if name == "reseed":
                raise AttributeError(name)
            return getattr(self.inner, name)

        def step(self, action: Any) -> Any:
            return self.inner.step(action)

        def reset(self) -> Any:
            return self.inner.reset()

    profile, wall = profiled(environment=Slotted)
    assert_adds_up(profile, wall)
    assert calls_of(profile)["environment"] == profile.num_steps == 200


def test_a_table_that_cannot_be_written_is_a_warning(tmp_path):
    profile, _ = profiled(num_steps=30)
    (tmp_path / "logs").write_text("a file in the way")
    with pytest.warns(UserWarning, match="was not written"):
        table.write_table(profile, tmp_path / "logs" / "profile.csv")
