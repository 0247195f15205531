"""Images in the place of observations: of agentkit's own environments, of dm_control, by a recipe."""

import os
import subprocess
import sys

import numpy as np
import pytest

from agentkit import envs
from agentkit.cli.values.environments import parse_wrapper
from agentkit.envs.bandit import Bandit
from agentkit.envs.point_mass import PointMass
from agentkit.errors import ConfigError, MissingExtraError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract
from agentkit.wrappers.pixels import Pixels


class TestPixels(EnvironmentContract):
    num_steps = 30

    def make_environment(self):
        return envs.make("agentkit:point_mass", seed=2, wrappers=[parse_wrapper("pixels(size=16)")])


@pytest.fixture
def drawn_by_numpy(monkeypatch):
    """Draws the positions of the joints in the place of the scene: the tests' machine may have no GL library."""
    module = pytest.importorskip("agentkit.envs.dm_control", exc_type=MissingExtraError)

    def render(self, height=240, width=320, camera_id=0):
        numbers = np.resize(self.physics.data.qpos, (height, width, 3))
        return (np.abs(numbers * 1e4 + camera_id) % 256).astype(np.uint8)

    monkeypatch.setattr(module.DMControlEnvironment, "render", render)


class TestRecipe(EnvironmentContract):
    num_steps = 12

    @pytest.fixture(autouse=True)
    def _drawn(self, drawn_by_numpy):
        """Every case is drawn so."""

    def make_environment(self):
        # 0.01 s per step of the simulator, of which an action lasts two: episodes of 5 actions.
        return envs.make("dm_control_pixels:cheetah/run", seed=7, size=20, task_kwargs={"time_limit": 0.1})


def test_images_are_averaged_down_and_repeated_up():
    environment = PointMass(seed=1)
    small, large = Pixels(environment, 16), Pixels(environment, 128)
    observation = small.reset().observation
    drawn = environment.render()
    assert drawn.max() == 255
    np.testing.assert_array_equal(observation, np.rint(drawn.reshape(16, 4, 16, 4, 3).mean(axis=(1, 3))))
    enlarged = large._transform(small.reset()).observation
    np.testing.assert_array_equal(enlarged, environment.render().repeat(2, axis=0).repeat(2, axis=1))


def test_grey_images_have_the_luminance_of_the_colours(drawn_by_numpy, monkeypatch):
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    monkeypatch.setattr(PointMass, "render", lambda self: image)
    grey = Pixels(PointMass(), 16, grayscale=True)
    luminance = grey.reset().observation
    np.testing.assert_allclose(luminance[..., 0], image @ np.array([0.299, 0.587, 0.114]), atol=0.501)
    assert grey.observation_spec().shape == luminance.shape == (16, 16, 1) and luminance.dtype == np.uint8
    stacked = envs.make("dm_control_pixels:cheetah/run", size=20, grayscale=True)
    assert stacked.reset().observation.shape == stacked.observation_spec().shape == (20, 20, 3)


def test_what_cannot_be_drawn_is_refused():
    class Blind:
        def __getattr__(self, name):
            if name == "render":
                raise AttributeError(name)
            return getattr(Bandit(), name)

    with pytest.raises(ConfigError, match=r"environment with render\(\), found Blind"):
        Pixels(Blind())
    with pytest.raises(ConfigError, match="size: expected a whole number of at least 1, found 0"):
        Pixels(PointMass(), 0)
    with pytest.raises(ConfigError, match="only dm_control has a camera_id"):
        Pixels(PointMass(), camera_id=1)


def test_the_recipe_is_drq_v2s_protocol(drawn_by_numpy):
    settings = {"seed": 3, "task_kwargs": {"time_limit": 0.1}}
    environment, plain = (envs.make(f"{name}:cheetah/run", **settings) for name in ("dm_control_pixels", "dm_control"))
    assert environment.observation_spec().shape == (84, 84, 9)
    action = np.full(6, 0.5, np.float32)
    first, timestep = environment.reset(), environment.step(action)
    plain.reset()
    rewards = [plain.step(action).reward for _ in range(2)]
    np.testing.assert_allclose(timestep.reward, sum(rewards), rtol=1e-6)
    np.testing.assert_array_equal(timestep.observation[..., :6], first.observation[..., 3:])  # The oldest goes.
    np.testing.assert_array_equal(timestep.observation[..., 6:], plain.environment.render(84, 84))
    assert np.any(timestep.observation[..., 6:] != first.observation[..., 6:])
    other = envs.make("dm_control_pixels:cheetah/run", camera_id=1, **settings)
    assert np.any(other.reset().observation != first.observation)
    with pytest.raises(ConfigError, match="camera_id: expected 0 to 1, the cameras of cheetah/run, found 2"):
        envs.make("dm_control_pixels:cheetah/run", camera_id=2)
    with pytest.raises(UnknownNameError, match="Did you mean 'cheetah/run'"):
        envs.make("dm_control_pixels:cheetah/rum")


@pytest.mark.full
def test_the_scene_is_drawn_or_one_line_says_what_to_install():
    """In a process of its own, without a display: which of both depends on the machine."""
    pytest.importorskip("dm_control")
    code = """
from agentkit import envs
images = envs.make("dm_control_pixels:quadruped/walk").reset().observation
print(images.shape == (84, 84, 9) and images.std() > 5)
"""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]
    assert last == "True" or ("MuJoCo cannot draw here" in last and "apt-get install libegl1" in last), done.stderr


def test_what_is_drawn_is_an_image_of_bytes(monkeypatch):
    monkeypatch.setattr(PointMass, "render", lambda self: np.full((8, 8), 7, np.uint8))
    pixels = Pixels(PointMass(), 8)
    pixels.observation_spec().validate(pixels.reset().observation)  # Grey ones have three equal colours.
    for drawn in (np.ones((8, 8, 3)), np.zeros((8, 8, 4), np.uint8), "a text", None):
        monkeypatch.setattr(PointMass, "render", lambda self, drawn=drawn: drawn)
        with pytest.raises(ConfigError, match=r"render\(\) must give an image, uint8 \[H, W, 3\] .*found "):
            pixels.reset()
    with pytest.raises(ConfigError, match=r"pixels: size: expected a whole number of at least 1, found 8\.5"):
        Pixels(PointMass(), 8.5)
