"""The model card beside a policy, and the hub: through its own library, without a network."""

import inspect
import shutil
import sys

import jax
import numpy as np
import pytest
import yaml

import agentkit
from agentkit.agents import dqn
from agentkit.errors import ConfigError, MissingExtraError
from agentkit.experiment.publishing import card, publish


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "catch"
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8))
    agentkit.run(
        agentkit.ExperimentConfig(
            agent, "agentkit:catch", num_steps=40, run_directory=folder, seed=7, evaluation_period=40,
            evaluation_episodes=3,
        )
    )  # fmt: skip
    return folder


def header(path):
    _, text, _ = path.read_text().split("---\n", 2)
    return yaml.safe_load(text)


def test_the_card_has_the_hubs_header_and_the_runs_facts(run, tmp_path):
    card.write_card(tmp_path / "README.md", run, card.returns_of(run), "policy.npz", "policy", ())
    found, text = header(tmp_path / "README.md"), (tmp_path / "README.md").read_text()
    assert found["library_name"] == "agentkit" and found["tags"][-2:] == ["dqn", "agentkit:catch"]
    (metric,) = found["model-index"][0]["results"][0]["metrics"]
    (row,) = (run / "logs" / "evaluation.csv").read_text().splitlines()[1:]
    assert metric["type"] == "mean_reward" and metric["value"] in {f"{float(x):.2f}" for x in row.split(",")}
    assert "Over 3 episodes at step 40" in text and "seed 7" in text
    assert f"| Version of jax | {jax.__version__} |" in text
    changed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert changed == {"hidden_sizes", "min_replay_size", "batch_size"}
    assert 'agentkit.load("policy.npz")' in text and "pip install 'agentkit-rl==" in text


def test_the_card_may_play_anew_and_says_when_nobody_has_evaluated(run, tmp_path):
    returns = card.returns_of(run, num_episodes=2)
    assert returns.num_episodes == 2 and returns.spread is not None
    assert returns == card.returns_of(run, num_episodes=2)
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "logs" / "evaluation.csv").unlink()
    card.write_card(tmp_path / "README.md", copy, card.returns_of(copy), "p.onnx", "onnx", ["observation"])
    assert "has not been evaluated" in (tmp_path / "README.md").read_text()
    assert "model-index" not in header(tmp_path / "README.md")


def write_evaluations(run, *steps, last="9.0"):
    """Gives a run evaluations of which each reached its steps, also for the agents of a run of several."""
    names = ["episode_return", "episode_return_min", "episode_return_max", "episode_return/row"]
    rows = [f"{step},{','.join([str(step)] * 4)},2,{step if step != steps[-1] else last}" for step in steps]
    header = f"steps,{','.join(names)},evaluation_episodes,episode_return/column"
    (run / "logs" / "evaluation.csv").write_text("\n".join([header, *rows, ""]))


def test_a_policy_gets_no_credit_for_the_return_of_another_step(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    for steps, own in (((20, 30), False), ((20, 40, 60), True), ((20, 40), True)):
        write_evaluations(copy, *steps)
        publish.push(copy, str(tmp_path / "published"))
        path = tmp_path / "published" / "README.md"
        assert ("model-index" in header(path)) == own
        found = 40 if own else 30
        assert f"at step {found} it reached a return of {found:.2f}" in path.read_text()
        assert ("that of step 40, which has no evaluation" in path.read_text()) == (not own)


def test_a_row_of_several_agents_that_is_being_written_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(card, "is_of_several_agents", lambda run: True)
    monkeypatch.setattr(card, "agents_of", lambda *args: ["row", "column"])
    (tmp_path / "logs").mkdir()
    for last, mean in (("10", 10.0), ("", None), ("1e", None)):
        write_evaluations(tmp_path, 5, 10, last=last)
        found = card.returns_of(tmp_path)
        assert (found and found.mean) == mean


def test_somebody_elses_readme_stays(run, tmp_path):
    (tmp_path / "README.md").write_text("# My project\n")
    publish.push(run, str(tmp_path))
    assert (tmp_path / "README.md").read_text() == "# My project\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "policy-card.md", "policy.npz"]


def test_a_folder_gets_what_the_hub_gets(run, tmp_path):
    assert publish.push(run, str(tmp_path / "published")) == str(tmp_path / "published")
    publish.push(run, str(tmp_path / "published"))  # Again, over its own card.
    assert sorted(path.name for path in (tmp_path / "published").iterdir()) == ["README.md", "policy.npz"]
    observation = np.ones((10, 5), np.float32)
    action, _ = agentkit.load(tmp_path / "published" / "policy.npz")(observation)
    assert action == agentkit.load(run)(observation)[0]


class LocalHub:
    """Takes uploads into a folder, in the form of the hub's cache; calls must fit the library's own functions."""

    def __init__(self, folder, library):
        self.folder, self.library, self.calls = folder, library.HfApi, []

    def create_repo(self, *args, **kwargs):
        inspect.signature(self.library.create_repo).bind(self, *args, **kwargs)
        self.calls.append(("create_repo", args, kwargs))

    def upload_folder(self, **kwargs):
        inspect.signature(self.library.upload_folder).bind(self, **kwargs)
        place = self.folder / f"models--{kwargs['repo_id'].replace('/', '--')}"
        shutil.copytree(kwargs["folder_path"], place / "snapshots" / "0123abc")
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("0123abc")


def test_what_is_pushed_to_the_hub_is_loaded_from_it(run, tmp_path, monkeypatch):
    library, constants = pytest.importorskip("huggingface_hub"), pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    api = LocalHub(tmp_path, library)
    assert publish.push(run, "me/catch", private=True, api=api) == "https://huggingface.co/me/catch"
    assert api.calls == [("create_repo", ("me/catch",), {"private": True, "exist_ok": True})]
    text = (tmp_path / "models--me--catch" / "snapshots" / "0123abc" / "README.md").read_text()
    assert 'agentkit.load("hf:me/catch")' in text
    found, original = agentkit.load("hf:me/catch"), agentkit.load(run)
    jax.tree.map(np.testing.assert_array_equal, found.arrays, original.arrays)
    with pytest.raises(ConfigError, match="Cannot load hf:me/other"):
        agentkit.load("hf:me/other")
    with pytest.raises(ConfigError, match="Cannot load hf:a/b/c"):
        agentkit.load("hf:a/b/c")


def test_what_cannot_be_pushed_is_refused_before_anything_is_written(run, tmp_path, monkeypatch):
    for target in ("catch", "me/catch/more", "me/"):
        with pytest.raises(ConfigError, match="Expected OWNER/NAME, or a folder"):
            publish.push(run, target)
    with pytest.raises(ConfigError, match="not a run folder"):
        publish.push(tmp_path / "none", str(tmp_path / "published"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[hub\]"):
        publish.push(run, "me/catch")
    assert list(tmp_path.iterdir()) == []
