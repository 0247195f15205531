"""Replay contract: items that look at the steps before theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentkit import errors, specs
from agentkit.replay import Replay
from agentkit.replay.table import Fifo, FromInline, FromStep, Layout, Select, Selector, Table, Uniform
from agentkit.testing.replay_cases import ReplayCases

STEP = {"image": specs.Array((40, 40, 2), np.uint8), "number": specs.Array((), np.int32)}
_IMAGE, _NUMBER = 0, 1


class HistoryContract(ReplayCases):
    """Checks `FromStep.history` against a plain loop over the episodes."""

    @pytest.mark.parametrize("remover, max_length", [(Fifo(), None), (Uniform(), None), (Uniform(), 4)])
    def test_history_is_that_of_the_episode_and_zeros_before_it(
        self, remover: Selector, max_length: int | None
    ) -> None:
        """Checks random items of random episodes, while others are removed and their steps' memory is used again."""
        rng = np.random.default_rng(0)
        tables = ends_table(remover, max_length), sequence_table(remover)
        expected: dict[str, dict[int, Any]] = {table.name: {} for table in tables}
        with self.opened(*tables, history=11) as (replay, writer):  # As many as an item of 5 steps ago needs.
            for episode in range(1, 33):
                first = 100 * episode
                length = int(rng.integers(1, 30))
                for i in range(length):
                    writer.append(make_image_step(first + i))
                    last = max(0, i - int(rng.integers(0, 6)))
                    start = max(0, i - 5, last - int(rng.integers(0, 4)))
                    name = f"{first + i}"
                    writer.create_item("ends", 1.0, start, last + 1, inline=np.int32(name))
                    expected["ends"][first + i] = _ends(first, start, last)
                    if i >= 1:
                        writer.create_item("sequences", 1.0, i - 1, i + 1, inline=np.int32(name))
                        expected["sequences"][first + i] = _sequence(first, i - 1, i)
                writer.end_episode()
                if episode % 8 == 0:
                    writer.flush()
                    for table in tables:
                        _check_items(replay, table, expected[table.name])

    def test_an_item_of_more_steps_than_its_layout_says_is_refused(self) -> None:
        """Checks that an item is not longer than the most steps that its layout was made for."""
        with self.opened(ends_table(Fifo(), 2), history=12) as (_, writer):
            for number in range(3):
                writer.append(make_image_step(number))
            with pytest.raises(errors.SpecError, match="an item has 2 steps at most, found 3"):
                writer.create_item("ends", 1.0, 0, 3, inline=np.int32(0))

    def test_a_writer_that_keeps_too_few_steps_is_refused(self) -> None:
        """Checks that an item whose history the writer may have forgotten is refused in words."""
        with self.opened(ends_table(Fifo()), history=5) as (_, writer):
            writer.append(make_image_step(1))
            with pytest.raises(errors.SpecError, match="takes the 5 steps before, too"):
                writer.create_item("ends", 1.0, 0, 1, inline=np.int32(0))


def _check_items(replay: Replay, table: Table, expected: dict[int, Any]) -> None:
    sampler = replay.sampler(table.name, 4)
    for _ in range(12):
        data = next(sampler).sample.data
        for b, name in enumerate(data["name"]):
            _check(data, b, expected[int(name)])
        for key, spec in table.signature.items():
            assert data[key].shape == (4, *spec.shape) and data[key].dtype == spec.dtype
    sampler.close()


def make_image_step(number: int) -> dict[str, Any]:
    """Makes a step that shows its number, as a number and as a stack of two images."""
    return {
        "image": np.stack([np.full((40, 40), (number + i) % 251, np.uint8) for i in range(2)], -1),
        "number": np.int32(number),
    }


def ends_table(remover: Selector, max_length: int | None = None) -> Table:
    """Makes a table of items that show their first and last step with those before, and their name.

    Args:
        remover: of the table.
        max_length: of its layout.
    """
    data = {
        "first": FromStep(_NUMBER, Select.FIRST),
        "first_before": FromStep(_NUMBER, Select.FIRST, 2),
        "image": FromStep(_IMAGE, Select.FIRST, 5),
        "last": FromStep(_NUMBER, Select.LAST, 4),
        "last_short": FromStep(_NUMBER, Select.LAST, 1),
        "name": FromInline(0),
    }
    layout = Layout(STEP, data, inline=specs.Array((), np.int32, "name"), max_length=max_length)
    return Table("ends", layout, 15, remover=remover)


def sequence_table(remover: Selector) -> Table:
    """Makes a table of sequences of two steps, with those before, and their name."""
    data = {
        "all": FromStep(_NUMBER, Select.ALL),
        "before": FromStep(_NUMBER, Select.ALL, 3),
        "last": FromStep(_NUMBER, Select.LAST, 4),
        "name": FromInline(0),
    }
    layout = Layout(STEP, data, length=2, inline=specs.Array((), np.int32, "name"))
    return Table("sequences", layout, 15, remover=remover)


def _numbers(first: int, begin: int, end: int) -> list[int]:
    return [first + i if i >= 0 else 0 for i in range(begin, end + 1)]


def _ends(first: int, start: int, last: int) -> dict[str, Any]:
    return {
        "first": first + start,
        "first_before": _numbers(first, start - 2, start),
        "image": _numbers(first, start - 5, start),
        "last": _numbers(first, last - 4, last),
        "last_short": _numbers(first, last - 1, last),
    }


def _sequence(first: int, start: int, last: int) -> dict[str, Any]:
    return {
        "all": _numbers(first, start, last),
        "before": _numbers(first, start - 3, last),
        "last": _numbers(first, last - 4, last),
    }


def _check(data: dict[str, np.ndarray], item: int, expected: dict[str, Any]) -> None:
    for key, numbers in expected.items():
        found = data[key][item]
        if key == "image":
            images = [make_image_step(n)["image"] if n else np.zeros((40, 40, 2), np.uint8) for n in numbers]
            np.testing.assert_array_equal(found, images)
        else:
            np.testing.assert_array_equal(found, numbers)
