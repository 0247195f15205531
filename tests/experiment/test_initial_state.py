"""Runs that begin with another one's training state: what they have at step 0, resumes to the bit, refusals."""

import dataclasses
import functools
import json
import pathlib
import shutil
import tomllib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
import tree

import agentkit
from agentkit import ExperimentConfig, callbacks, checkpoint
from agentkit.agents import cql, dqn, iql, sac, td3_bc
from agentkit.agents.addons import with_gail
from agentkit.agents.addons.gail import Config as GailConfig
from agentkit.cli import main
from agentkit.datasets import Episode
from agentkit.errors import ConfigError
from agentkit.experiment import OfflineConfig, ResumeError, run_offline
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.experiment.training.initial_state import find_initial_state
from agentkit.learning import Linear
from agentkit.wrappers.reward_scale import RewardScale
from tests.agents import offline_data

pytestmark = pytest.mark.both_stacks

POINT_MASS = offline_data.POINT_MASS
EPISODES = offline_data.make_episodes(POINT_MASS, 20, [1.0, 0.7])
SMALL: dict[str, Any] = {"hidden_sizes": (16,), "batch_size": 16, "min_replay_size": 16}
OFFLINE = {
    "cql": cql.make_agent(cql.Config(**SMALL)),
    "iql": iql.make_agent(iql.Config(**SMALL)),
    "td3_bc": td3_bc.make_agent(td3_bc.Config(**SMALL)),
}


def state_of(directory: pathlib.Path) -> dict[str, Any]:
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None
    return found.state


def assert_same(found: Any, expected: Any) -> None:
    tree.assert_same_structure(found, expected)
    for x, y in zip(tree.flatten(found), tree.flatten(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def without_key(state: dict[str, Any]) -> dict[str, Any]:
    """A training state without its PRNG key, which has the run's own seed in it."""
    return {path: leaf for path, leaf in state.items() if path != ".key"}


def online(agent: Any, directory: pathlib.Path | None, num_steps: int = 60, **settings: Any) -> ExperimentConfig:
    usual = {"environment": POINT_MASS, "evaluation_period": 0, "checkpoint_period": 20, "run_directory": directory}
    return ExperimentConfig(agent, num_steps=num_steps, **{**usual, **settings})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pathlib.Path]:
    """Makes an offline run of an agent; IQL's is evaluated, and the best evaluation is not its last."""
    folder = tmp_path_factory.mktemp("trained")

    @functools.cache
    def train(name: str) -> pathlib.Path:
        config = OfflineConfig(OFFLINE[name], EPISODES, 30, run_directory=folder / name, checkpoint_period=15)
        if name == "iql":
            plan: dict[str, Any] = {"evaluation_period": 10, "evaluation_episodes": 3}
            config = dataclasses.replace(config, environment=POINT_MASS, callbacks=[callbacks.keep_best()], **plan)
        run_offline(config)
        return folder / name

    return train


def scaled(folder: pathlib.Path) -> dict[str, Any]:
    """The wrapper that goes on with the rewards that a run has learned from."""
    scale = state_of(folder)["reward_scale"]
    return {"wrappers": [functools.partial(RewardScale, scale=scale)]} if scale != 1.0 else {}


@pytest.mark.parametrize("name", ["iql", *(pytest.param(name, marks=pytest.mark.full) for name in ("cql", "td3_bc"))])
def test_an_offline_run_goes_on_online_with_all_that_it_had(
    trained: Callable[[str], pathlib.Path], tmp_path: pathlib.Path, name: str
) -> None:
    """Before the first update the whole training state but for its key is the source's, and so is the policy."""
    settings = {"init_from": trained(name), "seed": 7, **scaled(trained(name))}
    agentkit.run(online(OFFLINE[name], tmp_path / "start", num_steps=1, **settings))
    states = (state_of(folder)["learner"]["state"] for folder in (tmp_path / "start", trained(name)))
    assert_same(*(without_key(state) for state in states))
    assert state_of(tmp_path / "start")["learner"]["num_updates"] == 0
    observation = np.array([0.5, -0.3], np.float32)
    folders = (tmp_path / "start", trained(name))
    np.testing.assert_array_equal(*(agentkit.load(x, environment=POINT_MASS)(observation)[0] for x in folders))
    record = json.loads((tmp_path / "start" / "config.json").read_text())
    assert (record["init_from"], record["init_checkpoint"]) == (str(trained(name)), 30)


def test_runs_of_other_seeds_draw_other_numbers(trained: Callable[[str], pathlib.Path], tmp_path: pathlib.Path) -> None:
    source, keys = trained("iql"), []
    for name, seed in (("first", 0), ("second", 1), ("again", 1)):
        agentkit.run(online(OFFLINE["iql"], tmp_path / name, 1, seed=seed, init_from=source, **scaled(source)))
        keys.append(state_of(tmp_path / name)["learner"]["state"][".key"].tolist())
    assert keys[0] != keys[1] == keys[2]


@pytest.mark.full
def test_online_it_does_not_lose_what_it_had(tmp_path: pathlib.Path) -> None:
    """After 100 steps the return is that of the data, which a run from nothing is far from."""
    config = iql.Config(hidden_sizes=(16,), batch_size=16, min_replay_size=16, learning_rate=1e-2, scale_rewards=False)
    agent, plan = iql.make_agent(config), {"evaluation_period": 100, "evaluation_episodes": 20}
    run_offline(OfflineConfig(agent, EPISODES, 300, run_directory=tmp_path / "offline"))
    source = tmp_path / "offline"
    found = [agentkit.run(online(agent, None, 100, init_from=x, **plan)) for x in (source, None)]
    assert found[0].updates == found[1].updates > 50
    warm, cold = (result.evaluations[0]["episode_return"] for result in found)
    assert warm > offline_data.mean_return(EPISODES) - 1.0 > cold + 3.0


def test_stopped_and_resumed_it_ends_as_if_never_stopped(
    trained: Callable[[str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """The source is read once: it is gone when the run goes on."""
    source = shutil.copytree(trained("iql"), tmp_path / "source")
    settings = {"init_from": source, **scaled(source)}
    agentkit.run(online(OFFLINE["iql"], tmp_path / "whole", **settings))
    agentkit.run(online(OFFLINE["iql"], tmp_path / "run", 30, **settings))
    shutil.rmtree(source)
    agentkit.resume(tmp_path / "run", num_steps=60)
    assert_same(*(state_of(tmp_path / name)["learner"] for name in ("run", "whole")))
    with pytest.raises(ResumeError, match="init_from"):
        agentkit.run(online(OFFLINE["iql"], tmp_path / "run", 90, **scaled(trained("iql"))), resume=True)


@pytest.mark.full
def test_online_to_online_has_other_rates_and_seeds(tmp_path: pathlib.Path) -> None:
    """The moments of the optimiser go on; a schedule by steps goes by the new run's own, and has no state."""
    rates = (Linear(start, 0.0, 100.0) for start in (1e-3, 5e-4))
    start, end = (dqn.make_agent(dqn.Config(**SMALL, learning_rate=rate)) for rate in rates)
    agentkit.run(online(start, tmp_path / "first", environment=offline_data.CATCH))
    settings = {"environment": offline_data.CATCH, "seed": 1, "init_from": tmp_path / "first"}
    agentkit.run(online(end, tmp_path / "second", 1, **settings))
    first, second = (state_of(tmp_path / name)["learner"]["state"] for name in ("first", "second"))
    assert any(np.any(first[path]) for path in first if "mu" in path)
    assert [path for path in first if np.any(first[path] != second[path])] == [".key"]


def test_the_best_policy_is_begun_with(trained: Callable[[str], pathlib.Path], tmp_path: pathlib.Path) -> None:
    """Of the step of the best evaluation there is no checkpoint: all but the policy is the newest one's."""
    best = checkpoint.read_latest(trained("iql") / "best")
    assert best is not None and best.step in (10, 20)
    settings = {"init_from": trained("iql"), "init_checkpoint": "best", **scaled(trained("iql"))}
    agentkit.run(online(OFFLINE["iql"], tmp_path / "run", 1, **settings))
    found, newest = (state_of(folder)["learner"]["state"] for folder in (tmp_path / "run", trained("iql")))
    policy = best.state["best"]["policy"]
    assert policy
    for path, leaf in policy.items():
        np.testing.assert_array_equal(found[f".policy{path}"], leaf)
    differs = {path for path in without_key(newest) if np.any(found[path] != newest[path])}
    assert differs and differs <= {f".policy{path}" for path in policy}


def test_schedules_of_an_optimiser_of_ones_own_begin_anew(tmp_path: pathlib.Path) -> None:
    """One that scales its steps, and one whose hyperparameters are injected."""
    falling = optax.linear_schedule(1e-3, 0.0, 100)
    optimizer = optax.chain(
        optax.inject_hyperparams(optax.adam)(learning_rate=falling), optax.scale_by_schedule(falling)
    )
    agent = dqn.make_agent(dqn.Config(**SMALL), optimizer=optimizer)
    agentkit.run(online(agent, tmp_path / "first", environment=offline_data.CATCH))
    settings = {"environment": offline_data.CATCH, "init_from": tmp_path / "first"}
    agentkit.run(online(agent, tmp_path / "second", 1, **settings))
    first, second = (state_of(tmp_path / name)["learner"]["state"] for name in ("first", "second"))
    restarted = {path for path in without_key(first) if np.any(first[path] != second[path])}
    assert len(restarted) == 2 and all(path.endswith(".count") and second[path] == 0 for path in restarted)


def test_a_run_with_gail_keeps_its_own_demonstrations(tmp_path: pathlib.Path) -> None:
    """However many they are; the discriminator goes on."""

    def imitate(name: str, action: int, num_steps: int, **settings: Any) -> dict[str, Any]:
        observations, actions = np.zeros((num_steps + 1, 10, 5), np.float32), np.full(num_steps, action, np.int32)
        never = np.zeros(num_steps, bool)
        shown = [Episode(observations, actions, np.zeros(num_steps, np.float32), never, never)]
        agent = with_gail(dqn.make_agent(dqn.Config(**SMALL, n_step=1)), shown, GailConfig(hidden_sizes=(4,)))
        agentkit.run(online(agent, tmp_path / name, 1, environment=offline_data.CATCH, **settings))
        found: dict[str, Any] = state_of(tmp_path / name)["learner"]["state"]
        return found

    first = imitate("first", 0, 3)
    second = imitate("second", 2, 5, seed=1, init_from=tmp_path / "first")
    np.testing.assert_array_equal(second[".demonstrations.action"], np.full(5, 2))
    assert {path for path in first if not np.array_equal(first[path], second[path])} == {
        path for path in first if ".demonstrations" in path or path.endswith(".key")
    }


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (sac.make_agent(sac.Config(**SMALL)), {}, "is a run of iql, and this one's agent is sac"),
        (
            iql.make_agent(iql.Config(**{**SMALL, "hidden_sizes": (8,)})),
            {},
            r"differ at .*float32\[16\] in .*, float32\[8\] here.*hidden_sizes=\[16\]",
        ),
        (OFFLINE["iql"], {"init_checkpoint": 5}, "has no checkpoint of step 5. It has those of: 15, 30"),
        (OFFLINE["iql"], {"init_checkpoint": "last"}, "must be 'newest', 'best' or a step, found the string 'last'"),
        (OFFLINE["iql"], {}, r"learned from rewards times .*reward_scale\(scale="),
        (OFFLINE["iql"], {"source": "/nowhere"}, r"init_from .*/nowhere is not a run folder: there is no such file or"),
        (OFFLINE["iql"], {"source": "."}, "is not a run folder: it has no config.json"),
    ],
)
def test_what_does_not_fit_is_refused_before_there_is_a_folder(
    trained: Callable[[str], pathlib.Path], tmp_path: pathlib.Path, agent: Any, settings: dict[str, Any], message: str
) -> None:
    settings = dict(settings)
    source = settings.pop("source", None) or trained("iql")
    with pytest.raises(ConfigError, match=message):
        agentkit.run(online(agent, tmp_path / "run", init_from=source, **settings))
    assert not (tmp_path / "run").exists()


def test_the_command_goes_on_with_the_rewards_that_were_learned_from(
    trained: Callable[[str], pathlib.Path], tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "iql", "--env", POINT_MASS, "--steps", "1", "--eval-every", "0", "--out", str(tmp_path / "runs")]
    sizes = ["--set", "hidden_sizes=16", "--set", "batch_size=16", "--set", "min_replay_size=16"]
    assert main([*words, *sizes, "--init-from", str(trained("iql")), "--init-checkpoint", "15"]) == 0
    scale = state_of(trained("iql"))["reward_scale"]
    assert f"Rewards in training are multiplied by {scale:.6g}" in capfd.readouterr().out
    (record,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/*/config.json"))
    assert record["init_checkpoint"] == 15 and str(scale) in json.dumps(record["wrappers"])
    with pytest.raises(SystemExit):
        main([*words, *sizes, "--init-from", str(trained("iql")), "--show-config"])
    assert str(scale) in str(tomllib.loads(capfd.readouterr().out)["wrapper"])
    assert main([*words, "--init-from", str(trained("iql"))]) == 2
    assert main([*words, "--init-checkpoint", "best"]) == 2
    assert "hidden_sizes=[16]" in capfd.readouterr().err and len(list((tmp_path / "runs").iterdir())) == 1


def test_a_launcher_looks_at_the_state_and_computes_nothing(
    trained: Callable[[str], pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it computed would take the devices that its learner needs."""
    experiment = online(OFFLINE["iql"], None, init_from=trained("iql"), **scaled(trained("iql")))
    parts = check_fit(experiment, find_spec(experiment))
    for name in ("device_put", "jit"):
        monkeypatch.setattr(jax, name, None)
    monkeypatch.setattr(jax.random, "PRNGKey", None)
    found = find_initial_state(experiment, parts, checks_alone=True)
    assert found.training is None and found.experiment.init_checkpoint == 30
