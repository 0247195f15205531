"""``agentkit export`` and ``agentkit offline``, end to end."""

import json
import re
from pathlib import Path

import pytest

from agentkit.cli import main
from agentkit.datasets import read_episodes, write_episodes
from tests.agents import offline_data

SMALL = ["--set", "hidden_sizes=8", "--set", "batch_size=8"]


def _run_folder(output):
    return re.search(r"^Run folder: (.*)$", output, re.MULTILINE)[1]


@pytest.mark.full
def test_train_export_learn_offline_resume_evaluate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    online = ["train", "dqn", "--env", offline_data.CATCH, *SMALL, "--set", "n_step=1", "--set", "min_replay_size=20"]
    assert main([*online, "--steps", "60", "--eval-every", "0"]) == 0
    run = _run_folder(capsys.readouterr().out)

    assert main(["export", run, "--episodes", "4", "--explore", "--out", "played.hdf5"]) == 0
    assert "Wrote played.hdf5: 36 steps." in capsys.readouterr().out
    assert len(read_episodes("played.hdf5").episodes) == 4
    assert main(["export", run, "--replay", "--out", "replay.hdf5"]) == 0
    assert "(7 episodes)" in capsys.readouterr().out

    words = ["offline", "bc", "--data", "played.hdf5", "--env", offline_data.CATCH, *SMALL, "--updates", "2e1"]
    assert main([*words, "--seed", "3", "--eval-episodes", "2"]) == 0
    output = capsys.readouterr()
    offline = Path(_run_folder(output.out))
    assert offline == Path("runs/bc-agentkit_catch-seed3") and f"Saved {offline}" in output.out
    assert "20/20 updates" in output.err and " at update 20" in output.out and "step" not in output.err
    assert main(["offline", "--resume", str(offline), "--updates", "40"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(offline), "--episodes", "3"]) == 0
    assert "checkpoint of step 40" in capsys.readouterr().out
    assert json.loads((offline / "config.json").read_text())["num_steps"] == 40

    for words, message in (
        (["export", run, "--out", "played.hdf5"], "played.hdf5 exists"),
        (["offline", "--resume", run], "Use agentkit train --resume"),
        (["train", "--resume", str(offline), "--steps", "60"], "agentkit offline --resume"),
        (["offline", "--resume", str(offline), "--seed", "3"], "leave out --seed"),
        (["offline", "td3_bc", "--data", "played.hdf5", "--env", "agentkit:point_mass", "--updates", "9"], "episode 0"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error


def test_data_that_were_moved_are_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    episodes = offline_data.make_episodes(offline_data.CATCH, 3, [0.5])
    old = write_episodes(Path("old.hdf5"), episodes)
    write_episodes(Path("other.hdf5"), episodes[:2])
    words = ["offline", "bc", "--data", str(old), "--env", offline_data.CATCH, *SMALL, "--eval-every", "0"]
    assert main([*words, "--updates", "2", "--run-directory", "run"]) == 0
    old.rename("new.hdf5")
    capsys.readouterr()
    assert main(["offline", "--resume", "run", "--updates", "3"]) == 2
    assert "old.hdf5 any more. Say where they are now: --data FILE" in capsys.readouterr().err
    assert main(["offline", "--resume", "run", "--updates", "3", "--data", "other.hdf5"]) == 2
    assert "Resume with the same file" in capsys.readouterr().err
    assert main(["offline", "--resume", "run", "--updates", "3", "--data", "new.hdf5"]) == 0
    assert main(["offline", "--resume", "run", "--updates", "4"]) == 0


def test_data_that_are_refused_leave_a_run_as_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    episodes = offline_data.make_episodes(offline_data.CATCH, 3, [0.5])
    write_episodes(Path("old.hdf5"), episodes)
    write_episodes(Path("other.hdf5"), episodes[:2])
    words = ["offline", "bc", "--data", "old.hdf5", "--env", offline_data.CATCH, *SMALL, "--eval-every", "0"]
    assert main([*words, "--updates", "2", "--run-directory", "run"]) == 0
    before = Path("run/config.json").read_bytes()
    capsys.readouterr()
    assert main(["offline", "--resume", "run", "--updates", "3", "--data", "other.hdf5"]) == 2
    assert "and the same wrappers for training only" in capsys.readouterr().err
    assert Path("run/config.json").read_bytes() == before
    assert main(["offline", "--resume", "run", "--updates", "3"]) == 0
    assert json.loads(Path("run/config.json").read_text())["num_steps"] == 3


@pytest.mark.parametrize("given", ["--episodes 3", "--max-steps 9", "--seed 0", "--explore"])
def test_what_replay_holds_is_not_played(given, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert main(["export", str(tmp_path), "--replay", "--out", str(tmp_path / "x.hdf5"), *given.split()]) == 2
    assert "leave out --episodes, --max-steps, --seed and --explore" in capsys.readouterr().err


@pytest.mark.parametrize("made", [(), ("new",), ("new", "er")])
def test_data_that_are_refused_leave_no_folder_that_was_not_there(made, tmp_path, capsys):
    data = tmp_path / "bad.hdf5"
    data.write_text("no HDF5")
    tmp_path.joinpath(*made).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    for words in (["train", "dqn", "--steps", "50"], ["offline", "bc", "--updates", "50"]):
        words += ["--env", offline_data.CATCH, "--data", str(data), "--out", str(tmp_path / "new" / "er")]
        assert main(words) == 2
        assert "bad.hdf5 cannot be read" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bc"], "--data is missing. Example: agentkit offline iql"),
        (["bc", "--data", "x", "--env", offline_data.CATCH], "--updates is missing"),
        (["bc", "--data", "x.hdf5", "--env", offline_data.CATCH, "--updates", "9"], "there is no file 'x.hdf5'"),
        (["bcc", "--data", "x", "--env", offline_data.CATCH, "--updates", "9"], "Did you mean 'bc'"),
        (["bc", "--steps", "9"], "'agentkit offline' has no option '--steps'"),
    ],
)
def test_mistakes(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["offline", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
