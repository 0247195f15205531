"""RLDS's own files: what tensorflow_datasets wrote of an environment's episodes gives back these episodes."""

import functools
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tree

from agentkit import checkpoint, envs
from agentkit.agents import discrete_cql
from agentkit.cli import main
from agentkit.datasets import Episode, EpisodeRecorder, read_episodes
from agentkit.datasets.episode_files import lasting_path
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import OfflineConfig, read_offline_config, resume_offline
from agentkit.experiment.offline import run_offline
from agentkit.wrappers.step_limit import StepLimit

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = [pytest.mark.tensorflow, pytest.mark.full]  # TensorFlow alone takes seconds to load.


def play(max_steps: int, seed: int) -> tuple[list[dict[str, Any]], Episode]:
    """An episode of catch as RLDS's steps, and as agentkit records it. It terminates after 9 steps."""
    environment = StepLimit(envs.make("agentkit:catch", seed=seed), max_steps)
    recorder, rng, steps = EpisodeRecorder(), np.random.default_rng(seed), []
    timestep = environment.reset()
    recorder.add_first(timestep)
    is_first = True
    while not timestep.last():
        action, observation = np.int32(rng.integers(3)), timestep.observation
        timestep = environment.step(action)
        recorder.add(action, timestep)
        steps.append(step_of(observation, action, timestep.reward, timestep.discount, is_first=is_first))
        is_first = False
    is_terminal = timestep.discount == 0
    steps.append(step_of(timestep.observation, 2, 0.0, 0.0, is_last=True, is_terminal=is_terminal))
    return steps, recorder.episodes[0]


def step_of(
    observation: np.ndarray, action: Any, reward: float, discount: float,
    is_first: bool = False, is_last: bool = False, is_terminal: bool = False,
) -> dict[str, Any]:  # fmt: skip
    seen = {
        "board": observation,
        "words": "catch it",
        "deep": {"image": (observation[..., None] * 255).astype(np.uint8)},
    }
    step = {"observation": seen, "action": action, "reward": reward, "discount": discount, "language": "catch"}
    return {**step, "is_first": is_first, "is_last": is_last, "is_terminal": is_terminal}


def write(folder: pathlib.Path, episodes: list[list[dict[str, Any]]]) -> pathlib.Path:
    """Writes episodes as tensorflow_datasets does."""
    features = tfds.features
    seen = {
        "board": features.Tensor(shape=(10, 5), dtype=np.float32),
        "words": features.Text(),
        "deep": {"image": features.Image(shape=(10, 5, 1))},
    }
    step = {"observation": seen, "action": features.Scalar(np.int32), "language": features.Text()}
    step |= {name: features.Scalar(np.float32) for name in ("reward", "discount")}
    step |= {name: features.Scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")}
    tfds.dataset_builders.store_as_tfds_dataset(
        "catch",
        "1.0.0",
        features=features.FeaturesDict({"steps": features.Dataset(step), "episode_id": features.Text()}),
        split_datasets={"train": [(str(i), {"steps": steps, "episode_id": "x"}) for i, steps in enumerate(episodes)]},
        data_dir=folder,
        disable_shuffling=True,
    )
    return folder / "catch" / "1.0.0"


@functools.cache
def played() -> tuple[list[list[dict[str, Any]]], list[Episode]]:
    """Episodes of catch: two terminated, two truncated, one of these after a single step."""
    steps, episodes = zip(*(play(most, seed) for seed, most in enumerate((100, 4, 100, 1))), strict=True)
    return list(steps), list(episodes)


def changed(number: int, t: int, **changes: Any) -> list[dict[str, Any]]:
    """The steps of an episode, of which one is another."""
    steps = list(played()[0][number])
    steps[t] = {**steps[t], **changes}
    return steps


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One data set for all tests: those that were played, and from 4 on others."""
    steps, _ = played()
    others = {
        "cut": steps[0][:5],
        "cut at once": steps[0][:1],
        "rewarded": changed(0, -1, reward=1.0),
        "discounted": changed(0, 2, discount=0.5),
        "contradicting": changed(1, 3, discount=0.0),
        "headless": changed(0, 0, is_first=False),
    }
    return write(tmp_path_factory.mktemp("rlds"), [*steps, *others.values()])


def assert_same(found: list[Episode], expected: list[Episode]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        seen = one.observations
        assert sorted(seen) == ["board", "deep"]
        assert seen["deep"]["image"].dtype == np.uint8
        np.testing.assert_array_equal(seen["deep"]["image"][..., 0], other.observations * 255)
        for x, y in zip(one._replace(observations=seen["board"]), other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_episodes_come_back_as_they_were_played(stored: pathlib.Path) -> None:
    _, expected = played()
    assert [episode.terminations[-1] for episode in expected] == [True, False, True, False]
    assert [episode.truncations[-1] for episode in expected] == [False, True, False, True]
    data = read_episodes(f"rlds:{stored}#train[:4]")
    assert data.actions is None
    assert_same(data.episodes, expected)
    assert_same(read_episodes(f"rlds:{stored}#train[1:3]").episodes, expected[1:3])


def test_an_agent_learns_from_them_and_a_run_is_gone_on_with(
    stored: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a relative path; config.json has the absolute one."""
    monkeypatch.chdir(stored.parent)
    agent = discrete_cql.make_agent(discrete_cql.Config(hidden_sizes=(8,), batch_size=8))
    run_offline(OfflineConfig(agent, "rlds:1.0.0#train[:4]", 4, run_directory=tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    name = f"rlds:{stored}#train[:4]"
    assert read_offline_config(tmp_path / "run").dataset == name == lasting_path("data", name)
    assert resume_offline(tmp_path / "run", num_updates=8).updates == 8
    run_offline(OfflineConfig(agent, read_episodes(name).episodes, 8, run_directory=tmp_path / "whole"))
    found, expected = (checkpoint.read_latest(tmp_path / run / "checkpoints") for run in ("run", "whole"))
    assert found is not None and expected is not None
    for x, y in zip(*(tree.flatten(each.state["learner"]) for each in (found, expected)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_an_episode_that_was_cut_off_ends_in_its_last_observation(stored: pathlib.Path) -> None:
    """The last of its five steps has an action, and nobody knows what followed it. Another has that step alone."""
    _, (whole, *_) = played()
    kept = Episode(whole.observations[:5], *(x[:4] for x in whole[1:]))
    assert_same(read_episodes(f"rlds:{stored}#train[4:6]").episodes, [kept._replace(truncations=np.arange(4) == 3)])


def test_rewards_in_last_steps_are_told_of(stored: pathlib.Path) -> None:
    with pytest.warns(UserWarning, match="1 of 3 episodes have a reward in their last step"):
        found = read_episodes(f"rlds:{stored}#train[4:7]").episodes
    assert_same(found[1:], played()[1][:1])


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (7, "episode 0: expected discounts of 1.*found 0.5 at step 2"),
        (8, "episode 0: expected discounts of 1.*found 0.0 at step 3"),
        (9, "episode 0: Expected each is_first right after"),
    ],
)
def test_what_is_no_episode_is_refused(stored: pathlib.Path, number: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_episodes(f"rlds:{stored}#train[{number}:{number + 1}]")


def test_wrong_names_are_refused(
    stored: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"the folder of one version.*no dataset_info\.json and no features\.json"):
        read_episodes(f"rlds:{stored.parent}")
    with pytest.raises(ConfigError, match=r"cannot be read by tensorflow_datasets: .*validation"):
        read_episodes(f"rlds:{stored}#validation")
    arguments = ["offline", "discrete_cql", "--env", "agentkit:catch", "--updates", "3", "--out", f"{tmp_path}/runs"]
    assert main([*arguments, "--data", f"rlds:{tmp_path}/none"]) != 0
    assert "found no dataset_info.json" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_another_split_than_train_is_found_or_asked_for(stored: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "1.0.0"
    shutil.copytree(stored, path)
    (file,) = path.glob("*-train.tfrecord-*")
    file.rename(path / file.name.replace("-train.", "-valid."))
    info = json.loads((path / "dataset_info.json").read_text())
    (split,) = info["splits"]
    info["splits"] = [{**split, "name": "valid"}]
    (path / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(SpecError, match="episode 7"):  # It was found, and read that far.
        read_episodes(f"rlds:{path}")
    info["splits"] += [{**split, "name": "other"}]
    (path / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ConfigError, match=r"expected a split behind a #, one of \['other', 'valid'\]"):
        read_episodes(f"rlds:{path}")


def test_a_damaged_file_is_an_error_in_words(stored: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "1.0.0"
    shutil.copytree(stored, path)
    (file,) = path.glob("*-train.tfrecord-*")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be read by tensorflow_datasets"):
        read_episodes(f"rlds:{path}")
