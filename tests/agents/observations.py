"""Tasks in which the right action depends on every part of what is seen, whatever kind of observation that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

import dm_env
import numpy as np
import tree

from agentkit import specs

NUM_BITS, EPISODE = 3, 3


class Part(NamedTuple):
    """One array of an observation, and how bits are hidden in it."""

    spec: specs.Array
    num_bits: int
    show: Callable[[np.ndarray, np.random.Generator], Any]


def numbers(num_bits: int, dtype: Any = np.float32, low: float = -1, high: float = 1) -> Part:
    spec = specs.BoundedArray((num_bits,), dtype, low, high)
    return Part(spec, num_bits, lambda bits, _: np.where(bits, high, low))


def choices(num_bits: int) -> Part:
    """Each number is odd or even: how large it is, says nothing."""
    counts = np.array([6, 4, 8][:num_bits])
    spec = specs.BoundedArray((num_bits,), np.int64, 0, counts - 1)
    return Part(spec, num_bits, lambda bits, rng: bits + 2 * rng.integers(0, counts // 2))


def cell(num_bits: int) -> Part:
    """One number, of whose digits the bits are."""
    if num_bits == 1:
        return Part(specs.DiscreteArray(6), 1, lambda bits, rng: bits[0] + 2 * rng.integers(3))
    return Part(specs.DiscreteArray(2**num_bits), num_bits, lambda bits, _: bits @ 2 ** np.arange(num_bits))


def image(
    num_bits: int, height: int, width: int, dtype: Any = np.uint8, high: float = 255, layout: str = "HWC"
) -> Part:
    """Each channel is bright in its left or in its right half: as many pixels are bright, and as bright as any."""

    def show(bits: np.ndarray, _: Any) -> np.ndarray:
        pixels = np.zeros((height, width, num_bits))
        for channel, bit in enumerate(bits):
            half = slice(width // 2, None) if bit else slice(width // 2)
            pixels[:, half, channel] = high
        return arrange(pixels)

    def arrange(pixels: np.ndarray) -> np.ndarray:
        if layout == "CHW":
            return np.moveaxis(pixels, -1, 0)
        return np.moveaxis(pixels, -1, 0)[..., None] if layout == "SHWC" else pixels

    shape = arrange(np.zeros((height, width, num_bits))).shape
    return Part(specs.BoundedArray(shape, dtype, 0, high), num_bits, show)


KINDS: dict[str, Any] = {
    "vector": numbers(3),
    "vector, uint8": numbers(3, np.uint8, 0, 255),
    "vector, bool": numbers(3, np.bool_, 0, 1),
    "discrete": cell(3),
    "multi-discrete": choices(3),
    "image HWC, uint8, 10x10": image(3, 10, 10),
    "image CHW, uint8, 10x10": image(3, 10, 10, layout="CHW"),
    "image HWC, float in [0, 1], 10x10": image(3, 10, 10, np.float32, 1),
    "image CHW, float in [0, 255], 10x10": image(3, 10, 10, np.float32, 255, "CHW"),
    "stack of images, uint8, 10x10": image(3, 10, 10, layout="SHWC"),
    "image HWC, uint8, 40x40": image(3, 40, 40),
    "image CHW, uint8, 84x84": image(3, 84, 84, layout="CHW"),
    "image HWC, uint8, 210x160": image(3, 210, 160),
    "dictionary": {"image": image(1, 10, 10), "vector": numbers(1), "cell": cell(1)},
    "nested": {"eyes": {"left": image(1, 10, 10), "right": image(1, 6, 6, np.float32, 1)}, "body": {"cell": cell(1)}},
    "tuple": (numbers(1), choices(1), image(1, 10, 10, layout="CHW")),
}
"""Kinds of observations by name: nests of parts that show three bits in all."""

UNSUITABLE: dict[str, Any] = {
    "text": Part(specs.Array((), "<U8", "text"), NUM_BITS, lambda bits, _: "".join(map(str, bits))),
    "complex numbers": Part(specs.Array((3,), np.complex64, "phases"), NUM_BITS, lambda bits, _: bits * 1j),
    "nothing": Part(specs.Array((0,), np.float32, "nothing"), NUM_BITS, lambda bits, _: bits[:0]),
}
"""Kinds of observations that no network sees."""


@final
class Sum(dm_env.Environment):
    """Asks at each of three steps for the sum of three bits, hidden in the parts of what is seen.

    The reward of a choice of 4 is 1 if right; of a number in [-1, 1], where sums are 0.5 apart, 1 less 4 times the
    error. Whoever misses one bit gets at best half of them, or 0 on average: 1.5 or 0 an episode, where 3 is perfect.
    """

    def __init__(self, seed: int, kind: str, continuous: bool = False):
        self._rng = np.random.default_rng(seed)
        self._parts, self._continuous = (KINDS | UNSUITABLE)[kind], continuous
        self._sum = self._left = 0

    def _observe(self) -> Any:
        bits = self._rng.integers(0, 2, NUM_BITS)
        self._sum = int(bits.sum())
        return draw(self._parts, bits, self._rng)

    def reset(self) -> dm_env.TimeStep:
        self._left = EPISODE
        return dm_env.restart(self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        if not self._left:
            return self.reset()
        self._left -= 1
        wanted = (self._sum - 1.5) / 2
        reward = 1 - 4 * abs(float(action[0]) - wanted) if self._continuous else float(action == self._sum)
        return (dm_env.transition if self._left else dm_env.termination)(reward, self._observe())

    def observation_spec(self) -> Any:
        return map_parts(lambda part: part.spec, self._parts)

    def action_spec(self) -> specs.Array:
        if self._continuous:
            return specs.BoundedArray((1,), np.float32, -1, 1)
        return specs.DiscreteArray(NUM_BITS + 1)


def draw(parts: Any, bits: np.ndarray, rng: np.random.Generator) -> Any:
    """An observation that shows these bits, each part as many as it has."""
    rest = list(bits)

    def show(part: Part) -> Any:
        mine = np.array([rest.pop(0) for _ in range(part.num_bits)])
        return np.asarray(part.show(mine, rng), part.spec.dtype)

    return map_parts(show, parts)


def map_parts(function: Callable[[Part], Any], parts: Any) -> Any:
    """Parts are tuples themselves, which `tree` would take apart."""
    if isinstance(parts, Part):
        return function(parts)
    if isinstance(parts, dict):
        return {name: map_parts(function, part) for name, part in parts.items()}
    return tuple(map_parts(function, part) for part in parts)


def all_observations(kind: str) -> Any:
    """The observations of all eight patterns of bits, ``[8, ...]``; what no bit says, is the same in all."""
    made = []
    for number in range(2**NUM_BITS):
        bits = np.array([number >> i & 1 for i in range(NUM_BITS)])
        made.append(tree.flatten(draw(KINDS[kind], bits, np.random.default_rng(0))))
    structure = draw(KINDS[kind], np.zeros(NUM_BITS, int), np.random.default_rng(0))
    return tree.unflatten_as(structure, [np.stack(leaves) for leaves in zip(*made, strict=True)])
