"""Videos of episodes, every so many of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Literal, final

import dm_env
import numpy as np

from agentkit.errors import CheckpointError, ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper
from agentkit.wrappers.film import draw, pillow


@final
class VideoRecorder(EnvironmentWrapper):
    """Writes every `period`-th episode as an animated image, ``episode_000000.gif`` and so on.

    Frames come from the environment's ``render()``. A file appears whole or not at all, when its
    episode ends; an episode cut short by `reset` or `close` is written as far as it went, by `close` as
    ``episode_000000_cut.gif``: a resumed run plays it again, and then its film has the name itself.

    No film that is there is written over: several environments of a run, that of its evaluations among them, may have
    one folder, and each counts its own episodes. Where a name is taken, the environment's further films have a number
    behind them, ``episode_000000_2.gif``.

    Args:
        environment: an environment with ``render() -> uint8 [H, W, 3]``.
        directory: where the files go; made if it is not there.
        period: records episodes 0, `period`, 2 `period`, ...
        frames_per_second: the speed of the video. GIF rounds to hundredths of a second.
        format: "gif" (256 colours) or "apng" (all colours, larger).

    Raises:
        ConfigError: if the environment cannot render, or a setting is impossible.
        MissingExtraError: if Pillow is not installed.
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        directory: str | os.PathLike[str],
        period: int = 1,
        frames_per_second: float = 30.0,
        format: Literal["gif", "apng"] = "gif",
    ):
        super().__init__(environment)
        if not callable(getattr(environment, "render", None)):
            raise ConfigError(f"{type(environment).__name__} has no render(), so there is nothing to record.")
        if period < 1 or not 0 < frames_per_second <= 100:
            raise ConfigError(
                "period: expected at least 1; frames_per_second: expected above 0 and at most 100; "
                f"found {period} and {frames_per_second}."
            )
        if format not in ("gif", "apng"):
            raise ConfigError(f"format: expected 'gif' or 'apng', found {format!r}.")
        pillow()  # Better now than after the first episode.
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._period = period
        self._milliseconds = 1000.0 / frames_per_second
        self._format = format
        self._episode = -1
        self._number = 1  # Tells the films of environments with one folder apart.
        self._frames: list[np.ndarray] = []

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        self._finish()
        return self._record(self._environment.reset())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        return self._record(self._environment.step(action))

    def close(self) -> None:
        """Writes the episode under way and closes the environment."""
        self._finish("_cut")
        super().close()

    def _record(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if timestep.first():
            self._episode += 1
        if self._episode % self._period == 0:
            self._frames.append(draw(self._environment.render).copy())
            if timestep.last():
                self._finish()
        return timestep

    def _finish(self, suffix: str = "") -> None:
        """Writes the frames there are."""
        if not self._frames:
            return
        image = pillow()
        first, *others = [image.fromarray(frame) for frame in self._frames]
        self._frames = []
        path, partial = self._claim(suffix)
        try:
            first.save(
                partial,
                format="GIF" if self._format == "gif" else "PNG",
                save_all=True,
                append_images=others,
                duration=self._milliseconds,
                loop=0,
            )
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _claim(self, suffix: str) -> tuple[Path, Path]:
        """Returns a file that is not there, and the one to be moved there; no other environment gets the same."""
        while True:
            number = "" if self._number == 1 else f"_{self._number}"
            end = "gif" if self._format == "gif" else "png"
            path = self._directory / f"episode_{self._episode:06d}{number}{suffix}.{end}"
            partial = path.with_name(f".{path.name}.partial")
            with contextlib.suppress(FileExistsError):
                partial.touch(exist_ok=False)  # Who can make it may write the film.
                if not path.exists():  # It may have been completed just before.
                    return path, partial
                partial.unlink()
            self._number += 1

    def _save(self) -> dict[str, Any]:
        return {"episode": self._episode}

    def _restore(self, state: dict[str, Any]) -> None:
        if "episode" not in state:
            raise CheckpointError(f"Expected the number of the recorded episode, found {state!r}.")
        # The episode under way will be replayed, and with it its video.
        self._frames = []
        self._episode = int(state["episode"])
