"""Stacks of frames for tests of replay, and what must hold of a column that keeps them."""

import collections
import dataclasses

import numpy as np

from agentkit.replay.in_process.frame_column import ZERO_FRAME, ZERO_REFERENCES, FrameColumn


@dataclasses.dataclass(frozen=True)
class Kind:
    """Stacks of `num_frames` frames, each of `colours` planes, along `axis`."""

    size: tuple[int, int]
    num_frames: int
    colours: int
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        depth = self.num_frames * self.colours
        return (depth, *self.size) if self.axis == 0 else (*self.size, depth)


KINDS = [
    Kind((32, 32), 4, 1, 2),
    Kind((33, 40), 4, 1, 0),
    Kind((40, 36), 2, 1, 2),
    Kind((32, 34), 4, 3, 2),
    Kind((32, 34), 3, 3, 0),
    Kind((35, 32), 1, 4, 2),  # no stack, and nothing but new frames
]


class Camera:
    """Stacks as FrameStack makes them; at times a picture stands still, hardly changes or comes back, or a cut."""

    def __init__(self, kind: Kind, rng: np.random.Generator):
        self._kind, self._rng = kind, rng
        self._frames: collections.deque[np.ndarray] = collections.deque(maxlen=kind.num_frames)

    def _new(self) -> np.ndarray:
        return self._rng.integers(0, 256, (self._kind.colours, *self._kind.size), np.uint8)

    def reset(self) -> np.ndarray:
        self._frames.extend([self._new()] * self._kind.num_frames)
        return self._stack()

    def step(self) -> np.ndarray:
        match self._rng.choice(["new", "still", "pixel", "back", "cut", "black"], p=[0.6, 0.1, 0.1, 0.08, 0.06, 0.06]):
            case "new":
                self._frames.append(self._new())
            case "still":
                self._frames.append(self._frames[-1].copy())
            case "pixel":
                frame = self._frames[-1].copy()
                frame.reshape(-1)[self._rng.integers(frame.size)] ^= 1
                self._frames.append(frame)
            case "back":
                self._frames.append(self._frames[0])
            case "cut":
                self._frames.extend([self._new() for _ in self._frames])
            case "black":
                self._frames.append(np.zeros_like(self._frames[0]))
        return self._stack()

    def _stack(self) -> np.ndarray:
        planes = np.concatenate(self._frames)  # [frames * colours, H, W]
        return planes if self._kind.axis == 0 else np.moveaxis(planes, 0, 2)  # a view that is not contiguous


def check_frames(column: FrameColumn, rows) -> None:
    """The references are what the rows in use add up to, and every other frame is free, once."""
    expected = np.bincount(column.frame_numbers[sorted(rows)].reshape(-1), minlength=column.num_frames)
    expected[ZERO_FRAME] += ZERO_REFERENCES
    assert list(column._references) == expected.tolist()
    assert sorted(column._free) == np.flatnonzero(expected == 0).tolist()
    assert not column._frames[ZERO_FRAME].any()
