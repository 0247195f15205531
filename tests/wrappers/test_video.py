"""Video recording."""

import functools

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

from agentkit.envs.bandit import Bandit  # noqa: E402
from agentkit.envs.catch import Catch  # noqa: E402
from agentkit.envs.resumable import ResumableEnvironment  # noqa: E402
from agentkit.errors import ConfigError  # noqa: E402
from agentkit.testing.environment import EnvironmentContract  # noqa: E402
from agentkit.wrappers.video import VideoRecorder  # noqa: E402


class TestContract(EnvironmentContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.directory = tmp_path

    num_steps = 30

    def make_environment(self):
        return ResumableEnvironment(VideoRecorder(Catch(), self.directory), seed=0)


def play(environment, num_episodes):
    for _ in range(num_episodes):
        timestep = environment.reset()
        while not timestep.last():
            timestep = environment.step(0)


@pytest.mark.parametrize(("format", "suffix"), [("gif", "gif"), ("apng", "png")])
def test_every_kth_episode_becomes_a_file(tmp_path, format, suffix):
    environment = VideoRecorder(Catch(), tmp_path / "new", period=2, frames_per_second=10, format=format)
    play(environment, 4)
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [f"episode_000000.{suffix}", f"episode_000002.{suffix}"]
    with Image.open(tmp_path / "new" / names[0]) as video:
        assert video.n_frames == 10 and video.size == (40, 80)
        assert video.info["duration"] == pytest.approx(100)
        video.seek(9)
        frame = np.asarray(video.convert("RGB"))
    assert frame.max() == 255 and frame.min() == 0


def test_an_unfinished_episode_is_written_when_closed(tmp_path):
    environment = VideoRecorder(Catch(), tmp_path)
    environment.reset()
    for _ in range(3):
        environment.step(0)
    environment.close()
    with Image.open(tmp_path / "episode_000000_cut.gif") as video:
        assert video.n_frames == 4


def test_after_restoring_the_episode_is_recorded_whole(tmp_path):
    first = ResumableEnvironment(VideoRecorder(Catch(), tmp_path), seed=0)
    play(first, 2)
    first.reset()
    first.step(0)
    state = first.save()
    first.close()
    second = ResumableEnvironment(VideoRecorder(Catch(), tmp_path), seed=0)
    timestep = second.restore(state)
    while not timestep.last():
        timestep = second.step(0)
    play(second, 1)
    names = [f"episode_00000{number}.gif" for number in ("0", "1", "2", "2_cut", "3")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with Image.open(tmp_path / "episode_000002.gif") as video:
        assert video.n_frames == 10


def test_a_film_that_cannot_be_written_takes_no_name(tmp_path, monkeypatch):
    environment = VideoRecorder(Catch(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", functools.partial(refuse, OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            play(environment, 1)
    assert not list(tmp_path.iterdir())


def refuse(error, *_args, **_kwargs):
    raise error


def test_refusals(tmp_path):
    with pytest.raises(ConfigError, match=r"Bandit has no render\(\)"):
        VideoRecorder(Bandit(), tmp_path)
    with pytest.raises(ConfigError, match="period: expected at least 1"):
        VideoRecorder(Catch(), tmp_path, period=0)
    with pytest.raises(ConfigError, match="expected 'gif' or 'apng'"):
        VideoRecorder(Catch(), tmp_path, format="mp4")


def test_environments_with_one_folder_write_over_no_film(tmp_path):
    first, second = (VideoRecorder(Catch(), tmp_path, period=2) for _ in range(2))
    play(first, 1)
    play(second, 3)
    play(first, 2)
    (tmp_path / ".episode_000000_3.gif.partial").touch()  # Another one is writing it.
    play(VideoRecorder(Catch(), tmp_path), 1)
    names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert names == [
        "episode_000000.gif", "episode_000000_2.gif", "episode_000000_4.gif", "episode_000002.gif",
        "episode_000002_2.gif",
    ]  # fmt: skip
