"""A run folder that is moved or removed while its run trains: the run ends with an error, and makes no half new one."""

import errno
import pathlib
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from agentkit import checkpoint, cli
from agentkit.agents import dqn
from agentkit.callbacks import keep_best
from agentkit.experiment import ExperimentConfig, launch, run
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import replay_node
from agentkit.experiment.launching.sharing.common import open_run_folder
from agentkit.experiment.runs.lock import RunFolder, RunFolderGoneError

SMALL = {"min_replay_size": 8, "batch_size": 4, "hidden_sizes": (4,)}


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A run folder that somebody moves away after the first checkpoint in it."""
    write = checkpoint.write

    def write_and_lose(folder: pathlib.Path, *args: Any, **kwargs: Any) -> pathlib.Path:
        path = write(folder, *args, **kwargs)
        shutil.move(folder.parent, tmp_path / "elsewhere")
        return path

    monkeypatch.setattr(checkpoint, "write", write_and_lose)
    return tmp_path / "run"


@pytest.mark.parametrize("settings", [{"checkpoint_period": 20}, {"checkpoint_period": 20, "evaluation_period": 30}])
def test_the_run_ends_within_a_checkpoint(vanishing: pathlib.Path, settings: dict[str, int]) -> None:
    settings = {"evaluation_period": 0, **settings}
    callbacks = [keep_best()] if settings["evaluation_period"] else []
    experiment = ExperimentConfig(
        dqn.make_agent(dqn.Config(**SMALL)), "agentkit:catch", 100, run_directory=vanishing, **settings
    )
    with pytest.raises(RunFolderGoneError, match=r"run folder .*run was moved or removed") as caught:
        run(experiment, callbacks=callbacks)
    assert "\n" not in str(caught.value) and not vanishing.exists()
    assert checkpoint.steps(vanishing.parent / "elsewhere" / "checkpoints") == [20]


def test_a_folder_that_cannot_be_looked_at_for_a_moment_is_not_gone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)

    def fail(path: pathlib.Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "stat", fail)
        folder.check()
    folder.check()
    shutil.move(tmp_path, f"{tmp_path}-elsewhere")
    with pytest.raises(RunFolderGoneError):
        folder.check()


@pytest.mark.full
def test_the_command_does_not_say_that_it_has_saved(
    vanishing: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", "min_replay_size=8", "--set", "batch_size=4", "--eval-every", "0", "--checkpoint-every", "60"]
    words += ["--out", str(vanishing)]
    assert cli.main(["train", "dqn", "--env", "agentkit:catch", "--steps", "60", *words]) != 0
    output = "".join(capsys.readouterr())
    assert "was moved or removed" in output and "Saved" not in output and not list(vanishing.glob("**/*"))


@pytest.mark.parametrize("replay", ["served", pytest.param("reverb", marks=pytest.mark.reverb)])
def test_a_launched_run_ends_too(vanishing: pathlib.Path, replay: str) -> None:
    """With either replay; no other test sees it of a program."""
    experiment = ExperimentConfig(
        dqn.make_agent(dqn.Config(**SMALL)), "agentkit:catch", 10**9, run_directory=vanishing, replay=replay,
        evaluation_period=0, checkpoint_period=20,
    )  # fmt: skip
    with pytest.raises(Exception, match="was moved or removed"):
        launch(experiment, num_actors=1, num_evaluators=0, engine="threads")
    assert not vanishing.exists()


@pytest.mark.parametrize("learner_id", [None, "row"])
@pytest.mark.parametrize("node", [replay_node, learner_node])
@pytest.mark.parametrize(("incarnation", "values"), [(1, {}), (0, {"left/node-0": 1}), (0, {"endpoint/node-0": {}})])
def test_a_node_that_is_started_again_does_not_begin_anew_in_a_new_folder(
    tmp_path: pathlib.Path, node: Any, incarnation: int, values: dict[str, Any], learner_id: str | None
) -> None:
    """Neither the supervisor's, whose incarnations are counted, nor one that was started by hand."""
    store = SimpleNamespace(status=lambda: {"values": values})
    context: Any = SimpleNamespace(
        name="node-0", index=0, incarnation=incarnation, run_directory=tmp_path / "run", store=store
    )
    experiment = ExperimentConfig(dqn.make_agent(dqn.Config(**SMALL)), "agentkit:catch", 100)
    words: Any = (context, experiment, None, {}) if node is learner_node else (context, experiment)
    with pytest.raises(RunFolderGoneError, match=r"run folder .*run was moved or removed"):
        node(*words, learner_id=learner_id)
    assert not (tmp_path / "run").exists()


def test_a_node_that_starts_where_the_disk_is_not_shared_makes_the_folder(tmp_path: pathlib.Path) -> None:
    store = SimpleNamespace(status=lambda: {"values": {}})
    context: Any = SimpleNamespace(name="node-0", incarnation=0, run_directory=tmp_path / "run", store=store)
    open_run_folder(context, "row").check()
    assert context.run_directory == tmp_path / "run" / "learners" / "row"
