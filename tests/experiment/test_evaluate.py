"""Evaluating a run's newest checkpoint, and filming it."""

import dataclasses
import functools
import pathlib
import shutil
import sys
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from agentkit import checkpoint, specs
from agentkit.agents import dqn, sac
from agentkit.envs.catch import Catch
from agentkit.errors import CheckpointError, ConfigError, SpecError, UnknownNameError
from agentkit.experiment import Evaluator, ExperimentConfig, MultiAgentConfig, evaluate, load, local, run
from agentkit.experiment.multi_agent import build, players
from agentkit.experiment.policies.restore_policy import check_fits, restore_policy
from agentkit.specs import make_environment_spec
from agentkit.variables import VariableStore
from agentkit.wrappers.film import Film

SMALL = {"hidden_sizes": (16,), "batch_size": 8, "min_replay_size": 20}


def train(directory: pathlib.Path, agent: Any = None, environment: Any = "agentkit:catch", **settings: Any) -> Any:
    agent = dqn.make_agent(dqn.Config(**SMALL)) if agent is None else agent
    quiet = {"num_steps": 60, "evaluation_period": 60, "evaluation_episodes": 5}
    return run(ExperimentConfig(agent, environment, run_directory=directory, **{**quiet, **settings}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("trained") / "run"
    train(directory)
    return directory


def test_it_gives_one_return_and_length_per_episode_always_the_same(trained: pathlib.Path) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    found = evaluate(trained, num_episodes=7)
    assert found["steps"] == 60 and found["updates"] > 0
    assert len(found["episode_return"]) == 7 and set(found["episode_return"]) <= {-1.0, 1.0}
    assert found["episode_length"] == [9] * 7
    assert evaluate(str(trained), num_episodes=7) == found
    assert evaluate(trained, num_episodes=3)["episode_return"] == found["episode_return"][:3]
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}


@pytest.mark.one_case
@pytest.mark.parametrize("kind", [ExperimentConfig, functools.partial(MultiAgentConfig, policy_of="shared")])
def test_no_evaluation_has_a_key_of_the_training(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """Nor one that training gets by splitting its own, as every learner and actor does."""
    found: list[Any] = []

    def noting(make: Any) -> Any:
        def note(*args: Any, **options: Any) -> Any:
            key = next(each for each in args if isinstance(each, jax.Array))
            found.extend(np.asarray([key, *jax.random.split(key)]).tolist())
            return make(*args, **options)

        return note

    of_one = [(local, "make_learner"), (local, "make_actor"), (sys.modules[Evaluator.__module__], "make_actor")]
    for home, name in [*of_one, (build, "make_learner"), (players, "PolicyActor")]:
        monkeypatch.setattr(home, name, noting(getattr(home, name)))
    agent = dqn.make_agent(dqn.Config(**SMALL))
    run(kind(agent, Catch, 2, evaluation_period=1, evaluation_episodes=1, progress=False))
    assert len(found) == 3 * 4  # A learner, an actor, and two evaluations.
    assert len({tuple(key) for key in found}) == len(found)


def test_an_environment_that_the_policy_does_not_fit_is_refused(trained: pathlib.Path) -> None:
    with pytest.raises(SpecError, match=r"trained with observations .*\[10, 5\], and this environment has .*\[6, 5\]"):
        evaluate(trained, 1, environment_settings={"rows": 6})
    with pytest.raises(CheckpointError, match="What was trained does not fit the environment given here"):
        evaluate(trained, 1, environment="agentkit:memory_chain")
    spec = make_environment_spec(Catch())
    with pytest.raises(SpecError, match=r"trained with actions int32\[\] of 2 values, and .* of 3 values"):
        check_fits(spec, spec.observations, specs.DiscreteArray(2, np.int32, "action"))


@pytest.mark.full
def test_it_judges_the_parameters_of_the_checkpoint(tmp_path: pathlib.Path) -> None:
    """SAC's mean action is a function of the parameters: so are the returns of the evaluation while training."""
    agent = sac.make_agent(sac.Config(**SMALL))
    (record,) = train(tmp_path / "run", agent, "agentkit:point_mass").evaluations
    found = evaluate(tmp_path / "run", num_episodes=5)
    restored = restore_policy(tmp_path / "run")
    with Evaluator(restored.experiment, restored.networks, restored.store) as evaluator:
        again = evaluator.run(5, number=int(record["steps"]))
        assert again["episode_return"] == pytest.approx(record["episode_return"], abs=1e-6)
        assert [each["episode_return"] for each in evaluator.episodes(5)] == found["episode_return"]
    # Other episodes: those by which a policy was found to be the best say too much of it.
    assert len(set(found["episode_return"])) == 5 and np.mean(found["episode_return"]) != record["episode_return"]


@pytest.mark.full
def test_an_evaluation_keeps_the_parameters_that_it_began_with() -> None:
    experiment = ExperimentConfig(dqn.make_agent(dqn.Config(**SMALL)), "agentkit:catch", 10)
    spec = make_environment_spec(Catch())
    networks = experiment.agent.make_networks(spec)
    update = experiment.agent.make_update(networks)
    store = VariableStore()

    def publish(version: int) -> bool:
        store.publish(version, update.variables(update.init(jax.random.PRNGKey(version))))
        return False

    publish(0)
    with Evaluator(experiment, networks, store) as evaluator:
        versions = []
        for _ in range(2):
            newest = store.get(["policy"]).version  # type: ignore[union-attr]
            evaluator.run(2, 0, should_stop=lambda: publish(store.get(["policy"]).version + 1))  # type: ignore
            versions.append(evaluator.client.version - newest)
    assert versions == [0, 0]


@pytest.mark.full
def test_an_experiment_with_code_that_no_folder_names_is_evaluated_as_it_is(tmp_path: pathlib.Path) -> None:
    agent = dqn.make_agent(dqn.Config(**SMALL))
    experiment = ExperimentConfig(
        agent, lambda seed: Catch(rows=5, seed=seed), 60, evaluation_period=0, run_directory=tmp_path / "run"
    )
    run(experiment)
    with pytest.raises(ConfigError, match=r"environment is a lambda.*give environment= again"):
        evaluate(tmp_path / "run", 2)
    assert evaluate(experiment, 2)["episode_length"] == [4, 4]
    assert load(experiment)(np.zeros((5, 5), np.float32))[0] in (0, 1, 2)
    with pytest.raises(ConfigError, match="has no run_directory"):
        evaluate(dataclasses.replace(experiment, run_directory=None), 2)


def test_a_batched_run_is_evaluated_in_a_single_environment(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run", num_envs=2)
    assert evaluate(tmp_path / "run", num_episodes=3)["episode_length"] == [9] * 3


@pytest.mark.full
def test_envpool_is_evaluated_in_a_batch_of_one(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("envpool")
    train(tmp_path / "run", environment="envpool:CartPole-v1", evaluation_episodes=2)
    found = evaluate(tmp_path / "run", num_episodes=2)
    assert found == evaluate(tmp_path / "run", num_episodes=2)
    assert np.mean(found["episode_return"]) > 0


def test_no_run_no_checkpoint_or_no_episode_is_refused(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder: it has no config"):
        evaluate(tmp_path)
    with pytest.raises(ConfigError, match=r"typo\.npz is not a run folder: there is no such file or folder"):
        evaluate(tmp_path / "typo.npz")
    with pytest.raises(ConfigError, match="at least 1 episode, found 0"):
        evaluate(trained, num_episodes=0)
    shutil.copy(trained / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        evaluate(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluation_episodes": 3}, "evaluation_episodes: agentkit.evaluate calls it 'num_episodes'"),
        ({"max_steps": 5}, "max_steps: agentkit.evaluate calls it 'evaluation_max_steps'"),
        ({"num_steps": 7}, "num_steps: no evaluation depends on it. Leave it out; .* evaluation_max_steps, .* seed"),
        ({"run_directory": "other"}, "run_directory: no evaluation depends on it"),
        ({"sed": 3}, r"Unknown argument of evaluate 'sed'. Did you mean 'seed'\?"),
        ({"num_episodes": 2.5}, "num_episodes: expected a whole number, at least 1 episode, found 2.5"),
        ({"num_episodes": "3"}, "num_episodes: expected a whole number, at least 1 episode, found '3'"),
    ],
)
def test_what_no_evaluation_depends_on_is_refused(trained: pathlib.Path, options: Any, message: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        evaluate(trained, **options)


def test_a_policys_file_is_evaluated_as_its_policy_is(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    load(trained).save(tmp_path / "policy.npz")
    found = evaluate(tmp_path / "policy.npz", 2, environment="agentkit:catch", evaluation_samples=True)
    assert found == evaluate(load(tmp_path / "policy.npz", explore=True), 2, environment="agentkit:catch")
    with pytest.raises(ConfigError, match="names no environment to play in"):
        evaluate(tmp_path / "policy.npz")
    with pytest.raises(ConfigError, match=r"evaluation_samples=True: a policy plays as it was loaded, .*explore=True"):
        evaluate(load(trained), evaluation_samples=True)
    with pytest.raises(ConfigError, match=r"what train or run returned, or a policy .* found a NoneType"):
        evaluate(None)  # type: ignore[arg-type]


def test_a_run_of_the_users_own_environment_is_refused(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run", environment=lambda seed: Catch(seed=seed), num_steps=20)
    with pytest.raises(ConfigError, match="your own code"):
        evaluate(tmp_path / "run")


@pytest.mark.filterwarnings("ignore:Passing over a damaged checkpoint")
def test_damaged_checkpoints_are_passed_over(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run", checkpoint_period=30)
    newest, oldest = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)
    (newest / "arrays.npz").write_bytes(b"")
    assert evaluate(tmp_path / "run", num_episodes=1)["steps"] == 30
    (oldest / "arrays.npz").write_bytes(b"")
    with pytest.raises(CheckpointError, match="No checkpoint can be read"):
        evaluate(tmp_path / "run", num_episodes=1)


# --- video -------------------------------------------------------------------------------------------


def frames(path: pathlib.Path) -> list[np.ndarray]:
    with Image.open(path) as film:
        assert film.format == "GIF"
        found = []
        for number in range(film.n_frames):
            film.seek(number)
            found.append(np.array(film.convert("RGB")))
    return found


def test_the_video_shows_the_first_steps(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "new folder" / "film.gif"
    found = evaluate(trained, num_episodes=3, video=Film(path, num_steps=10, size=None))
    assert found == evaluate(trained, num_episodes=3), "filming changes nothing"
    assert list(path.parent.iterdir()) == [path], "one film and nothing besides"
    pictures = frames(path)
    assert len(pictures) == 10 and pictures[0].shape == (80, 40, 3)
    # The ball falls by a row of 8 pixels in every frame; the paddle stays in the last row.
    tops = [int(np.flatnonzero(picture.max(axis=(1, 2)) > 128)[0]) for picture in pictures]
    assert tops == [8 * row for row in range(10)]
    assert all(picture[-1].max() > 128 for picture in pictures)


@pytest.mark.full
def test_gymnasium_is_filmed_too(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("gymnasium")
    pytest.importorskip("pygame")
    train(tmp_path / "run", environment="gymnasium:CartPole-v1", num_steps=40, evaluation_period=0)
    found = evaluate(tmp_path / "run", num_episodes=1, video=tmp_path / "film.gif")
    pictures = frames(tmp_path / "film.gif")
    assert 2 <= len(pictures) <= found["episode_length"][0] + 1
    assert np.any(pictures[0] != pictures[-1])


def test_what_cannot_be_filmed_is_refused(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.mp4 or \.gif, found '.*film\.avi'"):
        evaluate(trained, num_episodes=1, video=tmp_path / "film.avi")
    pytest.importorskip("bsuite")
    train(tmp_path / "run", environment="bsuite:catch/0", num_steps=20, evaluation_period=0)
    with pytest.raises(ConfigError, match=r"no render\(\)"):
        evaluate(tmp_path / "run", num_episodes=1, video=tmp_path / "film.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "nothing half-made is left"


def test_the_newest_checkpoint_counts(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run", checkpoint_period=20, evaluation_period=0)
    found = checkpoint.read_latest(tmp_path / "run" / "checkpoints")
    assert found is not None and evaluate(tmp_path / "run", num_episodes=1)["steps"] == found.step == 60


def test_evaluations_compile_the_policy_once_and_use_the_newest_parameters() -> None:
    traced = []

    def make_policy(networks: Any, config: Any, evaluation: bool = False) -> Any:
        policy = dqn.make_policy(networks, config, evaluation)

        def act(params: Any, key: Any, observation: Any, state: Any) -> Any:
            if evaluation:
                traced.append(params)
            return policy.act(params, key, observation, state)

        return policy._replace(act=act)

    store = VariableStore()
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(8,)), make_policy=make_policy)
    experiment = ExperimentConfig(agent, "agentkit:catch", num_steps=1)
    spec = make_environment_spec(experiment.make_environment(0))
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    with Evaluator(experiment, networks, store) as evaluator:
        found = []
        for version, seed in enumerate((0, 0, 1)):
            store.publish(version, update.variables(update.init(jax.random.PRNGKey(seed))))
            assert evaluator._actor is None or evaluator._actor._client.version == version - 1
            found.append(evaluator.run(3, number=7))
            assert evaluator._actor._client.version == version
        assert found[0] == found[1]
    assert len(traced) == 1
