"""What reads run folders on the command line reads those of the training on the device."""

import json

import numpy as np
import pytest

import agentkit
from agentkit.cli import main

_WORDS = """
    train a2c --env jax:catch --on-device --num-envs 4 --preset gymnasium:HalfCheetah-v5 --steps 200 --eval-every 200
    --eval-episodes 2 --set hidden_sizes=4
"""


@pytest.mark.full
def test_each_command_takes_the_folder_of_a_run_on_the_device(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # Where a comparison is drawn.
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: False)
    assert main([*_WORDS.split(), "--run-directory", "run"]) == 0
    out = capsys.readouterr().out
    assert "Preset for gymnasium:HalfCheetah-v5" in out and "Evaluation return" in out
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["on_device"] and record["agent_config"]["segment_length"] == 16, "the preset's"
    for words, made, message in [
        (["evaluate", "run", "--episodes", "2"], None, "(2 episodes)"),
        (["evaluate", "run", "--checkpoint", "best", "--episodes", "2"], None, "(2 episodes)"),
        (["watch", "run", "--episodes", "1", "--out", "watch.gif"], "watch.gif", "Wrote watch.gif"),
        (["plot", "run", "--out", "plot.png"], "plot.png", "Wrote plot.png"),
        (["compare", "run"], "comparison.png", "a2c"),
        (["export-policy", "run"], "run/policy/policy.npz", "the model card"),
    ]:
        assert main(words) == 0, capsys.readouterr().err
        assert message in capsys.readouterr().out
        assert made is None or (tmp_path / made).stat().st_size
    board = agentkit.envs.make("jax:catch").reset().observation
    policies = [agentkit.load(path) for path in ("run", "run/policy/policy.npz")]
    actions = [int(policy.select_action(board)) for policy in policies]
    assert actions[0] == actions[1] and 0 <= actions[0] < 3
    assert np.isfinite(agentkit.open_run("run").rows("evaluation")[-1]["episode_return"])
