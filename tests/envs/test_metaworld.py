"""Meta-World, where it can be installed: it wants a mujoco of its own (.ci/smoke does)."""

import numpy as np
import pytest

pytest.importorskip("metaworld")

from agentkit import envs
from agentkit.cli import main
from agentkit.errors import UnknownNameError
from agentkit.testing.environment import EnvironmentContract

GOAL = slice(-3, None)


class TestMetaWorld(EnvironmentContract):
    num_steps = 12

    def make_environment(self):
        return envs.make("metaworld:reach", seed=3, max_episode_steps=5)


def goals(seed, number=12, **settings):
    environment = envs.make("metaworld:reach", seed=seed, raw=True, **settings)
    return np.stack([environment.reset().observation[GOAL] for _ in range(number)])


def test_each_episode_has_one_of_50_goals_by_the_seed():
    many = np.unique(goals(0, 400), axis=0)
    assert len(many) == 50
    np.testing.assert_array_equal(goals(1), goals(1))
    other = goals(2)
    assert not np.array_equal(goals(1), other)
    assert all(any(np.array_equal(goal, known) for known in many) for goal in other)  # As the evaluation's are.
    assert not any(np.array_equal(goal, known) for goal in goals(2, goals_seed=1) for known in many)


def test_the_protocol():
    environment = envs.make("metaworld:door-open-v3", raw=True)
    assert environment.observation_spec().shape == (39,)
    assert environment.action_spec().shape == (4,)
    environment.reset()
    for length in range(1, 501):
        timestep = environment.step(np.zeros(4, np.float32))
        assert timestep.last() == (length == 500)
    assert timestep.discount == 1.0
    assert environment.last_info["success"] == 0.0
    assert 0.0 <= timestep.reward <= 10.0


def test_an_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"Meta-World task 'raech'.*Did you mean 'reach'"):
        envs.make("metaworld:raech")


def test_a_run_is_trained_and_evaluated_by_its_name(tmp_path, capsys):
    words = ["--env", "metaworld:reach", "--steps", "60", "--env-set", "max_episode_steps=20", "--eval-episodes", "1"]
    small = ["--set", "min_replay_size=20", "--set", "num_random_steps=20", "--set", "batch_size=8"]
    assert main(["train", "sac", *words, *small, "--out", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0
    assert "return" in capsys.readouterr().out
