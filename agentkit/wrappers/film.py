"""Writes films, frame by frame. The one file that imports Pillow and imageio-ffmpeg; extra ``video``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
from collections.abc import Callable, Generator
from typing import Any, final

import dm_env
import numpy as np

from agentkit.errors import ConfigError, missing_extra
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper

SUFFIXES = (".mp4", ".gif")

Camera = Callable[[Callable[[], np.ndarray]], None]
"""Called after each step and reset with a function that draws, ``() -> uint8 [H, W, 3]``; takes what it wants."""


@dataclasses.dataclass(frozen=True)
class Film:
    """Says which film is wanted.

    Attributes:
        path: ends in .mp4, which needs the extra ``video``, or .gif.
        num_steps: at most so many frames, one a step; episodes follow one another.
        frames_per_second: its speed. GIF rounds to hundredths of a second.
        size: height of the frames in pixels, an even number; the width follows. None for the environment's own.
        on_frame: called with the number of frames so far, for a counter.
    """

    path: str | os.PathLike[str]
    num_steps: int = 300
    frames_per_second: float = 30.0
    size: int | None = 240
    on_frame: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        """Refuses what gives no film.

        Raises:
            ConfigError: another suffix, or an impossible number.
            MissingExtraError: the package that writes such files is not installed.
        """
        suffix = pathlib.Path(self.path).suffix
        if suffix not in SUFFIXES:
            raise ConfigError(f"video: expected a file that ends in .mp4 or .gif, found {str(self.path)!r}.")
        if self.num_steps < 1:
            raise ConfigError(f"video_steps: expected at least 1, found {self.num_steps}.")
        if not 0 < self.frames_per_second <= 100:
            raise ConfigError(f"fps: expected more than 0 and at most 100, found {self.frames_per_second}.")
        if self.size is not None and not 16 <= self.size <= 4096:
            raise ConfigError(f"size: expected 16 to 4096 pixels, found {self.size}.")
        pillow()
        if suffix == ".mp4":
            _ffmpeg()


@final
class FilmWriter:
    """Writes frames to a film, which appears whole when it is closed, or not at all."""

    def __init__(self, film: Film):
        """Makes a `FilmWriter`; nothing is written before the first frame."""
        self._film = film
        self._path = pathlib.Path(film.path)
        self._partial = self._path.with_name(f".{self._path.name}.partial")
        self._sink: Any = None
        self.num_frames = 0

    @property
    def full(self) -> bool:
        """Returns whether it has all its frames."""
        return self.num_frames >= self._film.num_steps

    def take(self, render: Callable[[], np.ndarray]) -> None:
        """Adds an image; asks for none where the film is full.

        Raises:
            ConfigError: what is drawn is no image.
        """
        if self.full:
            return
        frame = _scaled(draw(render), self._film.size)
        if self._sink is None:
            self._partial.unlink(missing_ok=True)  # It may be a link.
            make = _gif_sink if self._path.suffix == ".gif" else _mp4_sink
            self._sink = make(self._partial, (frame.shape[1], frame.shape[0]), self._film.frames_per_second)
            self._sink.send(None)
        self._sink.send(frame)
        self.num_frames += 1
        if self._film.on_frame is not None:
            self._film.on_frame(self.num_frames)

    def close(self) -> None:
        """Completes the file, if there was a frame."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None
            os.replace(self._partial, self._path)

    def abandon(self) -> None:
        """Leaves nothing behind, where the disk lets it."""
        with contextlib.suppress(OSError):
            if self._sink is not None:
                self._sink.close()
        self._sink = None
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)


@final
class FilmedEnvironment(EnvironmentWrapper):
    """Shows each step to a camera, which takes the images that it wants.

    Args:
        environment: an environment with ``render() -> uint8 [H, W, 3]``.
        camera: shown every step and reset.

    Raises:
        ConfigError: it cannot render.
    """

    stateless = True

    def __init__(self, environment: dm_env.Environment, camera: Camera):
        super().__init__(environment)
        if not callable(getattr(environment, "render", None)):
            raise ConfigError(f"{type(environment).__name__} has no render(), so there is nothing to film.")
        self._camera = camera

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._shown(self._environment.reset())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        return self._shown(self._environment.step(action))

    def _shown(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        self._camera(self._environment.render)  # type: ignore[attr-defined]
        return timestep


def draw(render: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns what an environment draws, as uint8 ``[H, W, 3]``.

    Args:
        render: gives such an image, or a grey one, ``[H, W]``.

    Raises:
        ConfigError: it gives something else, such as text, or cannot draw.
    """
    try:
        drawn = render()
    except NotImplementedError as error:
        raise ConfigError(f"There is nothing to see: {str(error) or 'render() is not implemented.'}") from error
    frame = np.asarray(drawn)
    if frame.dtype != np.uint8 or frame.ndim < 2 or frame.shape[2:] not in ((), (3,)):
        found = f"{frame.dtype} {list(frame.shape)}" if isinstance(drawn, np.ndarray) else type(drawn).__name__
        raise ConfigError(
            f"To be seen, filmed or watched, an environment's render() must give an image, uint8 [H, W, 3] or grey "
            f"[H, W]; found {found}."
        )
    return frame if frame.ndim == 3 else np.repeat(frame[..., None], 3, axis=-1)


def _scaled(frame: np.ndarray, size: int | None) -> np.ndarray:
    """Returns the frame at a height, and with even sides, which mp4 needs; large pixels stay sharp."""
    height, width = frame.shape[:2]
    wanted = height if size is None else size
    shape = (max(2, round(width * wanted / height) // 2 * 2), max(2, wanted // 2 * 2))
    if shape == (width, height):
        return np.ascontiguousarray(frame)
    image = pillow()
    method = image.Resampling.NEAREST if wanted > height else image.Resampling.LANCZOS
    return np.asarray(image.fromarray(frame).resize(shape, method))


def _mp4_sink(
    path: pathlib.Path, shape: tuple[int, int], frames_per_second: float
) -> Generator[None, np.ndarray, None]:
    """Returns a generator that takes frames and writes H.264, which every browser plays.

    imageio-ffmpeg's own writer forks with Python code in between, of which JAX warns: its ffmpeg is started directly.
    """
    command = [
        _ffmpeg().get_ffmpeg_exe(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
        "-s", f"{shape[0]}x{shape[1]}", "-r", str(frames_per_second), "-i", "-", "-an", "-c:v", "libx264",
        "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", str(path),
    ]  # fmt: skip
    # A process group of its own: Ctrl-C is for the training, which then completes the film.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as process:
        assert process.stdin is not None and process.stderr is not None
        try:
            while True:
                process.stdin.write((yield).tobytes())
        except (GeneratorExit, BrokenPipeError):
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            said = process.stderr.read().decode(errors="replace").strip().splitlines() or ["it says nothing"]
            if process.wait() != 0:
                raise OSError(f"ffmpeg could not write {path.name}: {said[-1]}") from None


def _gif_sink(path: pathlib.Path, _: tuple[int, int], frames_per_second: float) -> Generator[None, np.ndarray, None]:
    """Returns a generator that takes frames and writes a GIF, all of them in the same 256 colours.

    A palette for each frame takes Pillow six times as long, and the file is three times as large.
    """
    image = pillow()
    frames: list[np.ndarray] = []
    try:
        while True:
            frames.append((yield))
    finally:
        if frames:
            sample = np.concatenate(frames[:: max(1, len(frames) // 8)])  # Colours of later scenes count, too.
            palette = image.fromarray(sample).quantize(256)
            shown = [image.fromarray(frame).quantize(palette=palette, dither=image.Dither.NONE) for frame in frames]
            milliseconds = 1000 / frames_per_second
            shown[0].save(path, format="GIF", save_all=True, append_images=shown[1:], duration=milliseconds, loop=0)


def pillow() -> Any:
    """Returns the module ``PIL.Image``.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("pillow", "video") from error
    return Image


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise missing_extra("imageio-ffmpeg", "video") from error
    return imageio_ffmpeg
