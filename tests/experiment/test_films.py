"""Films: their frames, what they cost the training (nothing), and drawing without a display."""

import functools
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import agentkit
from agentkit import checkpoint
from agentkit.actors.random_actor import sample_legal_action
from agentkit.agents import dqn
from agentkit.envs import rendering
from agentkit.errors import ConfigError, MissingExtraError
from agentkit.experiment import evaluate
from agentkit.experiment.evaluation.evaluate import filmed
from agentkit.experiment.evaluation.training_films import TrainingFilms
from agentkit.experiment.multi_agent.judging.filming import filmed_agents
from agentkit.loggers import read_csv
from agentkit.wrappers.film import Film, FilmWriter, draw

ffmpeg = pytest.importorskip("imageio_ffmpeg")

CONFIG = dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8)


def train(folder, video_period=0, environment="agentkit:catch", num_steps=60, resume=False):
    experiment = agentkit.ExperimentConfig(
        dqn.make_agent(CONFIG), environment, num_steps=num_steps, run_directory=folder, video_period=video_period,
        evaluation_period=30, evaluation_episodes=1,
    )  # fmt: skip
    return agentkit.run(experiment, resume=resume)


def read(path, size):
    """Frames uint8 ``[T, H, W, 3]`` of a film of a known size ``(H, W)``."""
    command = [
        ffmpeg.get_ffmpeg_exe(),
        "-loglevel",
        "error",
        "-i",
        str(path),
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    done = subprocess.run(command, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, *size, 3)


def test_a_film_has_the_frames_that_it_was_given(tmp_path):
    counts = []
    film = Film(tmp_path / "run.mp4", num_steps=3, frames_per_second=10, size=40, on_frame=counts.append)
    writer = FilmWriter(film)
    for value in (0, 120, 240):
        writer.take(functools.partial(np.full, (20, 31, 3), value, np.uint8))
    writer.take(lambda: pytest.fail("a film that is full asks for no image"))
    assert not (tmp_path / "run.mp4").exists(), "a film appears whole"
    writer.close()
    frames = read(tmp_path / "run.mp4", (40, 62))
    assert len(frames) == 3 and counts == [1, 2, 3]
    assert ffmpeg.count_frames_and_secs(str(tmp_path / "run.mp4"))[1] == pytest.approx(0.3, abs=0.02)
    assert np.abs(frames.mean(axis=(1, 2, 3)) - [0, 120, 240]).max() < 6
    assert [path.name for path in tmp_path.iterdir()] == ["run.mp4"]


def test_what_is_abandoned_leaves_nothing(tmp_path):
    for name in ("run.mp4", "run.gif"):
        writer = FilmWriter(Film(tmp_path / name))
        writer.take(lambda: np.zeros((16, 16, 3), np.uint8))
        writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_ffmpegs_own_error_is_passed_on(tmp_path):
    writer = FilmWriter(Film(tmp_path / "gone" / "run.mp4"))
    with pytest.raises(OSError, match=r"ffmpeg could not write \.run\.mp4\.partial: .*No such file"):
        for _ in range(3):
            writer.take(lambda: np.zeros((16, 16, 3), np.uint8))
        writer.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"path": "a.avi"}, "ends in .mp4 or .gif"), ({"num_steps": 0}, "video_steps: expected at least 1"),
     ({"frames_per_second": 0}, "fps: expected more than 0"), ({"size": 8}, "size: expected 16 to 4096")],
)  # fmt: skip
def test_settings_that_give_no_film_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Film(**({"path": "a.mp4"} | settings))


def test_a_missing_ffmpeg_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[video\]"):
        Film("a.mp4")
    Film("a.gif")


def test_a_folder_that_the_disk_refuses_is_a_warning(tmp_path):
    (tmp_path / "videos").touch()
    films = object.__new__(TrainingFilms)  # Without an environment: it comes to no step.
    films._folder, films._evaluator = tmp_path / "videos", None
    with pytest.warns(RuntimeWarning, match=r"Could not write .*step-25\.mp4: .*File exists.*Training goes on"):
        films.film(25)


def same(first, second):
    """Whether two runs' checkpoints hold the same bits, and their logs the same rows."""
    states = [checkpoint.read_latest(folder / "checkpoints").state for folder in (first, second)]
    leaves = [jax.tree.leaves({key: state[key] for key in ("learner", "actor", "loop", "counter")}) for state in states]
    logs = [read_csv(folder / "logs" / "evaluation.csv")[1] for folder in (first, second)]
    for row in (*logs[0], *logs[1]):
        del row["seconds"]
    pairs = zip(*leaves, strict=True)
    return logs[0] == logs[1] and all(np.array_equal(a, b) for a, b in pairs if not isinstance(a, str))


@pytest.mark.full
def test_films_of_a_training_change_none_of_its_bits(tmp_path):
    train(tmp_path / "plain")
    train(tmp_path / "filmed", video_period=25)
    assert same(tmp_path / "plain", tmp_path / "filmed")
    assert sorted(path.name for path in (tmp_path / "filmed" / "videos").iterdir()) == ["step-25.mp4", "step-50.mp4"]
    frames = read(tmp_path / "filmed" / "videos" / "step-50.mp4", (240, 120))
    assert len(frames) == 300 and frames.max() > 200 and np.ptp(frames, axis=0).max() > 200
    train(tmp_path / "other", num_steps=61)
    assert not same(tmp_path / "plain", tmp_path / "other"), "the comparison can fail"


@pytest.mark.full
def test_a_resumed_training_films_on(tmp_path):
    train(tmp_path / "run", video_period=25, num_steps=30)
    agentkit.resume(tmp_path / "run", num_steps=60)
    train(tmp_path / "plain")
    assert sorted(path.name for path in (tmp_path / "run" / "videos").iterdir()) == ["step-25.mp4", "step-50.mp4"]
    assert same(tmp_path / "plain", tmp_path / "run")


def test_a_training_that_cannot_be_filmed_does_not_begin(tmp_path):
    with pytest.raises(ConfigError, match=r"no render\(\)"):
        train(tmp_path / "run", video_period=25, environment="agentkit:bandit")
    with pytest.raises(ConfigError, match=r"nothing to see: CartPole has no render\(state\)"):
        train(tmp_path / "run", 30, environment="jax:cartpole")
    with pytest.raises(ConfigError, match="give the experiment a run_directory"):
        train(None, video_period=25)
    assert not (tmp_path / "run" / "config.json").exists()


def test_an_evaluation_is_filmed_over_its_episodes(tmp_path):
    train(tmp_path / "run")
    film = Film(tmp_path / "a" / "run.mp4", num_steps=15, size=None)
    assert evaluate(tmp_path / "run", 3, film) == evaluate(tmp_path / "run", 3), "filming changes nothing"
    assert len(read(film.path, (80, 40))) == 15
    with pytest.raises(ConfigError, match="at least 1 episode"):
        evaluate(tmp_path / "run", 0, tmp_path / "b" / "run.mp4")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", ["team:pettingzoo:mpe/simple_spread_v3", "both_sides:pettingzoo:classic/tictactoe_v3"])
def test_an_agent_made_of_pettingzoos_is_drawn_to_the_end(name):
    pytest.importorskip("pettingzoo")
    images = []
    experiment = agentkit.ExperimentConfig(dqn.make_agent(CONFIG), name, num_steps=1)
    environment = filmed(experiment, lambda render: images.append(render()), None).make_environment(0)
    spec, rng = environment.action_spec(), np.random.default_rng(0)
    timestep = environment.reset()
    while not timestep.last():
        timestep = environment.step(sample_legal_action(spec, timestep.observation, rng))
    assert len(images) > 5 and all(image.dtype == np.uint8 for image in images)
    assert any((image != images[0]).any() for image in images)


def test_agents_of_pettingzoos_that_see_who_they_are_are_drawn():
    pytest.importorskip("pettingzoo")
    images = []
    name = "agent_ids:pettingzoo:classic/tictactoe_v3"
    experiment = agentkit.MultiAgentConfig(dqn.make_agent(CONFIG), name, 1, "shared")
    filmed_agents(experiment, lambda render: images.append(render())).make_environment(0).reset()
    assert images[0].dtype == np.uint8 and images[0].std() > 0


# --- MuJoCo without a display --------------------------------------------------------------------------


def test_mujoco_is_drawn_or_one_line_says_what_to_install(tmp_path):
    """In a process of its own, without a display, as it is on a server: which of both depends on the machine."""
    pytest.importorskip("mujoco")
    code = """
from agentkit import envs
environment = envs.make("gymnasium:Reacher-v5", render_mode="rgb_array", width=64, height=48)
environment.reset()
print(environment.render().std() > 5)
"""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]
    assert last == "True" or ("MuJoCo cannot draw here" in last and "apt-get install libegl1" in last), done.stderr


class Model:
    __module__ = "mujoco._structs"

    def __init__(self):
        self.vis = types.SimpleNamespace(quality=types.SimpleNamespace(offsamples=4, shadowsize=4096))


@pytest.fixture
def headless(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(rendering, "_picked", [])
    monkeypatch.setattr(sys, "platform", "linux")

    def libraries(*working):
        def import_module(name):
            if name.removeprefix("mujoco.") not in working:
                raise ImportError(f"no {name}\nand more lines")
            context = types.SimpleNamespace(make_current=lambda: None, free=lambda: None)
            return types.SimpleNamespace(GLContext=lambda width, height: context)

        monkeypatch.setattr(rendering.importlib, "import_module", import_module)

    return libraries


def test_the_library_that_works_is_picked(headless, monkeypatch):
    headless("osmesa")
    model = Model()
    assert rendering.prepare_mujoco(model) == "osmesa" == os.environ["MUJOCO_GL"]
    assert (model.vis.quality.offsamples, model.vis.quality.shadowsize) == (0, 1024)
    small = Model()
    rendering.prepare_mujoco(small, 64)
    assert small.vis.quality.shadowsize == 256
    assert rendering.prepare_mujoco(None) is None
    monkeypatch.setenv("DISPLAY", ":0")
    assert rendering.prepare_mujoco(Model()) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [("", r"EGL: no mujoco.egl; OSMESA: .*apt-get install libegl1 libgl1-mesa-dri or apt-get install libosmesa6\.$"),
     ("osmesa", r"OSMESA: no mujoco.osmesa\).*: apt-get install libosmesa6\.$"),
     ("glfw", "MUJOCO_GL=glfw draws nothing without a display")],
)  # fmt: skip
def test_no_library_is_one_line_that_names_the_packages(headless, monkeypatch, asked, message):
    headless()
    monkeypatch.setenv("MUJOCO_GL", asked)
    with pytest.raises(ConfigError, match=message) as caught:
        rendering.prepare_mujoco(Model())
    assert "\n" not in str(caught.value)


def test_a_library_asked_for_that_is_not_here_is_no_traceback(headless, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(ConfigError, match="apt-get install libosmesa6"):
        rendering.explain_import(AttributeError("'NoneType' object has no attribute 'glGetError'"), "numpy")
    rendering.explain_import(ImportError("no such package"), "no_such_package")


def test_an_environment_that_does_not_say_why_it_cannot_draw():
    """As gymnasium.Env's own render does."""

    def render():
        raise NotImplementedError

    with pytest.raises(ConfigError, match=r"nothing to see: render\(\) is not implemented"):
        draw(render)
