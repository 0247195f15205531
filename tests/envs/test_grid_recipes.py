"""MiniGrid and MinAtar: the contract, what is seen, and agents that take it."""

import numpy as np
import pytest

from agentkit import envs
from agentkit.cli import main
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract

SMALL = [
    "--set", "hidden_sizes=4", "--set", "min_replay_size=8", "--set", "batch_size=4", "--steps", "48",
    "--eval-every", "48", "--eval-episodes", "1",
]  # fmt: skip


@pytest.mark.parametrize("name", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
class TestMinAtar(EnvironmentContract):
    num_steps = 24

    @pytest.fixture(autouse=True)
    def _name(self, name):
        pytest.importorskip("minatar")
        self.name, self.sees_ends = name, name == "Breakout"  # The others' episodes are longer.

    def make_environment(self):
        return envs.make(f"minatar:{self.name}", seed=3)


@pytest.mark.parametrize("name", ["DoorKey-5x5", "Fetch-5x5-N2"])
class TestMiniGrid(EnvironmentContract):
    num_steps = 24

    @pytest.fixture(autouse=True)
    def _name(self, name):
        pytest.importorskip("minigrid")
        self.name = name

    def make_environment(self):
        return envs.make(f"minigrid:{self.name}", seed=3, max_steps=10)


def test_minatars_protocol():
    pytest.importorskip("minatar")
    environment = envs.make("minatar:Breakout", raw=True)
    assert environment.observation_spec().shape == (10, 10, 4) and environment.observation_spec().dtype == bool
    assert environment.action_spec().num_values == 6
    assert envs.make("minatar:Breakout", minimal_actions=True).action_spec().num_values == 3
    environment.reset()
    image = environment.render()
    assert image.shape == (160, 160, 3)
    assert set(np.unique(image)) == {0, 63, 255}  # Nothing, the paddle, bricks, which hide the ball.
    with pytest.raises(UnknownNameError, match="Did you mean 'Breakout'"):
        envs.make("minatar:breakot")


def test_freeways_own_time_limit_is_a_termination():
    pytest.importorskip("minatar")
    environment = envs.make("minatar:Freeway", raw=True)
    timestep, length = environment.reset(), 0
    while not timestep.last():
        timestep, length = environment.step(np.int32(0)), length + 1
    assert (length, timestep.discount) == (2501, 0.0)


def test_sticky_actions_do_not_reach_over_an_end():
    """An episode depends on its seed alone, not on the last action of the one before."""
    pytest.importorskip("minatar")
    environment = envs.make("minatar:Breakout", raw=True, sticky_action_prob=1.0)
    seen = []
    for before in (1, 3):
        environment.reset()
        environment._game.last_action = before
        environment.reseed(0)
        environment.reset()
        seen.append(np.stack([environment.step(np.int32(0)).observation for _ in range(5)]))
    np.testing.assert_array_equal(*seen)


def test_minigrids_observations_say_all_that_the_task_says():
    pytest.importorskip("minigrid")
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    environment = envs.make("minigrid:GoToObject-6x6-N2", seed=0, raw=True)
    game = environment.gymnasium_environment.unwrapped
    missions = set()
    for _ in range(4):
        seen = environment.reset().observation
        plain = game.gen_obs()
        cells = seen["image"]
        np.testing.assert_array_equal(cells[..., :11].argmax(-1), plain["image"][..., 0])
        np.testing.assert_array_equal(cells[..., 11:17].argmax(-1), plain["image"][..., 1])
        np.testing.assert_array_equal(cells[..., 17:].argmax(-1), plain["image"][..., 2])
        np.testing.assert_array_equal(cells.sum(-1), 3)
        assert seen["direction"] == plain["direction"]
        colours, kinds = game.observation_space["mission"].ordered_placeholders
        colour, kind = seen["mission"]
        assert f"{colours[colour]} {kinds[kind]}" in plain["mission"]
        missions.add(plain["mission"])
    assert len(missions) > 1 and {*colours} == {*IDX_TO_COLOR.values()} and {*kinds} <= {*IDX_TO_OBJECT.values()}
    assert "mission" not in envs.make("minigrid:Empty-5x5").observation_spec()
    with pytest.raises(SpecError, match="sentences, and no network here reads text"):
        envs.make("minigrid:BabyAI-GoToObj")
    with pytest.raises(SpecError, match=r"mission space MissionSpace has text.* minigrid:NAME, such as"):
        envs.make("gymnasium:MiniGrid-Empty-5x5-v0")
    with pytest.raises(UnknownNameError, match="Did you mean 'DoorKey-5x5'"):
        envs.make("minigrid:DoorKey-5x")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "setting"), [("minatar:Breakout", "sticky_action_prob=0.2"), ("minigrid:DoorKey-5x5", "max_steps=20")]
)
def test_a_recipe_trains_from_the_command_line(name, setting, tmp_path, monkeypatch):
    pytest.importorskip(name.partition(":")[0])
    monkeypatch.chdir(tmp_path)
    assert main(["train", "dqn", "--env", name, "--env-set", setting, *SMALL, "--out", "runs"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    trained = np.genfromtxt(run / "logs/evaluation.csv", delimiter=",", names=True)
    assert trained["steps"] == 48 and trained["updates"] > 0


@pytest.mark.parametrize("probability", [2, -0.1, float("nan"), "often"])
@pytest.mark.parametrize("name", ["minatar", "atari"])
def test_sticky_actions_have_a_probability(name, probability):
    pytest.importorskip({"minatar": "minatar", "atari": "ale_py"}[name])
    with pytest.raises(ConfigError, match="sticky_action_prob: expected a number of at least 0 and at most 1, found"):
        envs.make(f"{name}:Breakout", sticky_action_prob=probability)


def test_minigrids_own_limit_is_lengthened_by_its_own_setting_only():
    pytest.importorskip("minigrid")
    for asked in (300, -1):
        with pytest.raises(ConfigError, match=f"expected at most 250, .*found {asked}. Give max_steps"):
            envs.make("minigrid:DoorKey-5x5", max_episode_steps=asked)
    for settings, length in (({"max_steps": 300}, 300), ({"max_episode_steps": 20}, 20)):
        environment = envs.make("minigrid:DoorKey-5x5", **settings)
        timestep, steps = environment.reset(), 0
        while not timestep.last():
            timestep, steps = environment.step(np.int32(0)), steps + 1
        assert (steps, timestep.discount) == (length, 1.0)
