"""The options that keep the best policy, keep checkpoints and stop a run early."""

import argparse
import json
from pathlib import Path

import pytest

from agentkit import checkpoint
from agentkit.callbacks import keep_best, stop_at
from agentkit.cli import main
from agentkit.cli.values.callbacks import changed_callbacks

RUN = Path("runs/dqn-agentkit_catch-seed0")
SMALL = ["--set", "hidden_sizes=4", "--set", "min_replay_size=32", "--set", "batch_size=8", "--eval-episodes", "1"]
CATCH = ["train", "dqn", "--env", "agentkit:catch", *SMALL, "--eval-every", "40", "--checkpoint-every", "40"]


def callbacks_of(run: Path) -> list[str]:
    return [entry["type"].rpartition(":")[2] for entry in json.loads((run / "config.json").read_text())["callbacks"]]


@pytest.mark.full
@pytest.mark.filterwarnings("default::agentkit.experiment.config.callback_record.MissingCallbackWarning")
def test_a_run_stops_at_a_return_and_its_best_policy_is_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*CATCH, "--steps", "400", "--stop-at-return", "-1", "--keep-checkpoints", "3"]) == 0
    output = capsys.readouterr().out
    assert (
        "Stopped at step 40: evaluation return" in output and f"agentkit evaluate {RUN} --checkpoint best\n" in output
    )
    assert callbacks_of(RUN) == ["KeepBest", "StopAt"]
    assert main(["evaluate", str(RUN), "--checkpoint", "best", "--episodes", "1"]) == 0
    assert "checkpoint of step 40 (the best evaluation's)" in capsys.readouterr().out

    assert main(["train", "--resume", str(RUN), "--steps", "160", "--stop-at-return", "2"]) == 0
    assert "Stopped" not in capsys.readouterr().out
    assert checkpoint.steps(RUN / "checkpoints") == [80, 120, 160]
    assert main(["evaluate", str(RUN), "--checkpoint", "120", "--episodes", "1"]) == 0
    assert main(["evaluate", str(RUN), "--checkpoint", "121", "--episodes", "1"]) == 2
    assert "has no checkpoint of step 121. It has those of: 80, 120, 160" in capsys.readouterr().err
    assert main(["train", "--resume", str(RUN), "--steps", "200", "--no-keep-best"]) == 0
    told = "agentkit: warning: The run was made with the callback KeepBest, and goes on without it."
    assert told in capsys.readouterr().err
    assert callbacks_of(RUN) == ["StopAt"]


def test_what_nothing_is_evaluated_for_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (["--stop-at-return", "1"], ["--keep-best"]):
        assert main([*CATCH, "--steps", "400", "--eval-every", "0", *words]) == 2
        expected = f"agentkit: {words[0]} looks at evaluations, and --eval-every 0 makes none. Leave one of them out."
        assert capsys.readouterr().err.splitlines() == [expected]
    assert main([*CATCH, "--steps", "39", "--stop-at-return", "1"]) == 2
    assert "with one every 40 the run ends, at 39, before there is any. Give a shorter" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_resumed_run_keeps_what_the_words_do_not_say_of_its_callbacks():
    own = [keep_best(min_episodes=20), stop_at(1.0, return_of="first")]
    words = argparse.Namespace(keep_best=None, best_score="episode_return_min", stop_at_return=5.0)
    changed = [keep_best("episode_return_min", min_episodes=20), stop_at(5.0, return_of="first")]
    assert changed_callbacks(own, words) == changed
    assert changed_callbacks([keep_best()], words) == [keep_best("episode_return_min"), stop_at(5.0)]
