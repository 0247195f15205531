import json

import numpy as np
import pytest

from agentkit.cli import main
from agentkit.cli.plot import Curve, draw, group_runs, mean_and_range, read_run
from agentkit.errors import ConfigError
from agentkit.loggers import CsvLogger


def _run(
    folder,
    seed=0,
    agent="sac",
    environment="gymnasium:Pendulum-v1",
    evaluation=((0, 1.0), (10, 3.0)),
    training=(),
    **config,
):
    folder.mkdir(parents=True)
    record = {
        "agent": agent,
        "environment": environment,
        "seed": seed,
        "replay": "in_process",
        "agent_config": config,
    }
    (folder / "config.json").write_text(json.dumps(record))
    for name, points in (("evaluation", evaluation), ("train", training)):
        if points:
            with CsvLogger(folder / "logs" / f"{name}.csv") as logger:
                for step, value in points:
                    logger.write({"steps": step, "episode_return": value, "episodes": None})
    return folder


def test_curves_of_a_run(tmp_path):
    curves = read_run(_run(tmp_path / "a", training=[(step, float(step)) for step in range(1, 41)]))
    np.testing.assert_array_equal(curves.evaluation.steps, [0, 10])
    np.testing.assert_array_equal(curves.evaluation.returns, [1.0, 3.0])
    assert curves.training.returns[0] == 1.0  # the mean of one episode
    assert curves.training.returns[1] == 1.5
    assert curves.training.returns[-1] == np.mean(np.arange(21, 41))  # of the last twenty


def test_mean_and_range_over_seeds_of_different_length():
    curves = [
        Curve(np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0])),
        Curve(np.array([0.0, 10.0]), np.array([2.0, 20.0])),
    ]
    steps, mean, low, high = mean_and_range(curves)
    np.testing.assert_array_equal(steps, [0, 10, 20])
    np.testing.assert_array_equal(mean, [1, 15, 20])
    np.testing.assert_array_equal(low, [0, 10, 20])
    np.testing.assert_array_equal(high, [2, 20, 20])


def test_seeds_are_one_group_and_labels_name_what_differs(tmp_path):
    runs = [
        _run(tmp_path / "a", seed=0, batch_size=256, discount=0.9),
        _run(tmp_path / "b", seed=1, batch_size=256, discount=0.9),
        _run(tmp_path / "c", seed=0, batch_size=64, discount=0.9),
        _run(tmp_path / "d", agent="dqn", double=True),
    ]
    groups = group_runs([read_run(run) for run in runs])
    assert {label: len(group) for label, group in groups.items()} == {
        "sac batch_size=256 (2 seeds)": 2,
        "sac batch_size=64": 1,
        "dqn": 1,
    }


def test_the_command_writes_a_picture(tmp_path, capsys):
    runs = [str(_run(tmp_path / f"s{seed}", seed=seed, training=[(5, 1.0)])) for seed in range(2)]
    runs.append(str(_run(tmp_path / "other", environment="bsuite:catch/0", evaluation=(), training=[(5, 1.0)])))
    output = tmp_path / "new" / "picture.png"
    assert main(["plot", *runs, "-o", str(output)]) == 0
    assert output.read_bytes().startswith(b"\x89PNG") and output.stat().st_size > 10_000
    assert str(output) in capsys.readouterr().out


def test_what_is_no_run(tmp_path, capsys):
    assert main(["plot", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="holds no returns yet"):
        read_run(_run(tmp_path / "empty", evaluation=()))
    with pytest.raises(ConfigError, match="Cannot write the picture"):
        draw([read_run(_run(tmp_path / "a"))], tmp_path / "picture.doc")
