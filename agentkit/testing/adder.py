"""A contract that every adder must satisfy on every replay, with hand-computed cases.

Inherit from `AdderContract`, say how a replay is made, and all cases run against it::

    class TestAddersOnMyReplay(AdderContract):
        def make_replay(self, tables):
            return MyReplay(tables)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import pytest
import tree

from agentkit import core, nests, specs
from agentkit.adders import EpisodeAdder, NStepAdder, SequenceAdder, Tables
from agentkit.errors import ConfigError, SpecError
from agentkit.replay.base import FIRST_PRIORITY, Replay, Writer, check_priority, index_tables
from agentkit.replay.rate_limiter import MinSize
from agentkit.replay.table import Fifo, FromInline, Layout, Select, Table
from agentkit.types import Nest, Step, Transition

FLOAT = specs.Array((), np.float32)

SPEC = specs.EnvironmentSpec(
    observations=specs.Array((2,), np.float32, "observation"),
    actions=specs.DiscreteArray(10, name="action"),
    rewards=FLOAT,
    discounts=FLOAT,
)
"""The environment of the cases: o_t = (t, 10 t), a_t = t + 1."""

NESTED_SPEC = SPEC._replace(
    observations={"position": specs.Array((2,), np.float32), "velocity": FLOAT},
    rewards={"a": FLOAT, "b": specs.Array((2,), np.float32)},
    discounts={"a": FLOAT, "b": FLOAT},
)
"""The same with nests: velocity = -t; reward b = (r, 2 r)."""

EXTRAS_SPEC = {"log_prob": FLOAT}
"""Extras of step t: -t."""


class Episode(NamedTuple):
    """Rewards r_1 ... r_L, and how the episode ends.

    Attributes:
        rewards: of its L steps.
        end: "terminate" (LAST with discount 0), "truncate" (LAST with discount 1), or "die": no LAST;
            the adder is reset, as when its environment died.
        discount: the environment's discount in mid-episode.
        offset: t of its first observation, so that episodes can be told apart.
    """

    rewards: Sequence[float]
    end: str = "terminate"
    discount: float = 1.0
    offset: int = 0


class AdderCase(NamedTuple):
    """Holds episodes, the adder they go through, and the items that must come out.

    Attributes:
        name: unique.
        adder: "n_step", "sequence" or "episode".
        arguments: its keyword arguments beside `tables` and `extras_spec`.
        episodes: what happens.
        items: expected data, oldest first.
        nested: whether the environment has `NESTED_SPEC`.
        extras: whether there are extras.
    """

    name: str
    adder: str
    arguments: dict[str, Any]
    episodes: Sequence[Episode]
    items: Sequence[Nest]
    nested: bool = False
    extras: bool = False

    @property
    def spec(self) -> specs.EnvironmentSpec:
        """Returns the environment's spec."""
        return NESTED_SPEC if self.nested else SPEC

    @property
    def layout(self) -> Layout:
        """Returns the layout of the table that the adder feeds."""
        extras_spec = EXTRAS_SPEC if self.extras else ()
        if self.adder == "n_step":
            return NStepAdder.layout(self.spec, extras_spec)
        length = self.arguments["length" if self.adder == "sequence" else "max_length"]
        return SequenceAdder.layout(self.spec, length, extras_spec)

    def make_adder(self, make_writer: Callable[[int], Writer], tables: Tables = "table") -> core.Adder:
        """Makes the adder, on a writer of the history it needs."""
        kwargs = {"tables": tables, "extras_spec": EXTRAS_SPEC if self.extras else (), **self.arguments}
        if self.adder == "n_step":
            return NStepAdder(make_writer(NStepAdder.history(kwargs["n"])), self.spec, **kwargs)
        if self.adder == "sequence":
            return SequenceAdder(make_writer(SequenceAdder.history(kwargs["length"])), self.spec, **kwargs)
        return EpisodeAdder(make_writer(EpisodeAdder.history(kwargs["max_length"])), self.spec, **kwargs)


def observation(t: int, nested: bool = False) -> Nest:
    """Returns o_t of the cases."""
    position = np.array([t, 10 * t], np.float32)
    return {"position": position, "velocity": np.float32(-t)} if nested else position


def action(t: int) -> np.ndarray:
    """Returns a_t of the cases."""
    return np.array(t + 1, np.int32)


def extras_of(t: int) -> Nest:
    """Returns the extras of step t."""
    return {"log_prob": np.float32(-t)}


def play(adder: core.Adder, episode: Episode, *, nested: bool = False, extras: bool = False) -> None:
    """Feeds an episode to an adder."""
    adder.add_first(dm_env.restart(observation(episode.offset, nested)))
    for i, (act, timestep, extra) in enumerate(steps_of(episode, nested=nested)):
        if i == 0:
            assert not timestep.first()
        adder.add(act, timestep, extra if extras else ())
    if episode.end == "die":
        adder.reset()


def steps_of(episode: Episode, *, nested: bool = False) -> list[tuple[Nest, dm_env.TimeStep, Nest]]:
    """Returns the episode's actions, time steps and extras after its first time step."""
    steps = []
    for i, reward in enumerate(episode.rewards):
        t = episode.offset + i
        last = i == len(episode.rewards) - 1 and episode.end != "die"
        discount: Any = 0.0 if last and episode.end == "terminate" else episode.discount
        value: Any = float(reward)
        if nested:
            value = {"a": value, "b": np.array([value, 2 * value], np.float32)}
            discount = {"a": discount, "b": discount}
        step_type = dm_env.StepType.LAST if last else dm_env.StepType.MID
        timestep = dm_env.TimeStep(step_type, value, discount, observation(t + 1, nested))
        steps.append((action(t), timestep, extras_of(t)))
    return steps


def _transition(t: int, k: int, reward: float, discount: float, case: str = "") -> Transition:
    """Returns the expected transition from o_t to o_{t+k}."""
    nested, extras = case == "nested", case == "extras"
    rewards: Any = np.float32(reward)
    discounts: Any = np.float32(discount)
    if nested:
        rewards = {"a": rewards, "b": np.array([reward, 2 * reward], np.float32)}
        discounts = {"a": discounts, "b": discounts}
    return Transition(
        observation(t, nested),
        action(t),
        rewards,
        discounts,
        observation(t + k, nested),
        extras_of(t) if extras else (),
    )


def _steps(*rows: str, extras: bool = False) -> Step:
    """Returns the expected sequence.

    A row is ``t:reward:discount`` (``^`` before t: start of episode), ``t`` alone for the final row, ``-``
    for padding.
    """
    parsed = []
    for row in rows:
        start, row = row.startswith("^"), row.removeprefix("^")
        t, reward, discount = [*row.split(":"), "0", "0"][:3]
        is_padding, is_final = t == "-", ":" not in row
        time = 0 if is_padding else int(t)
        parsed.append(
            Step(
                observation(time),
                np.zeros((), np.int32) if is_final else action(time),
                np.float32(reward),
                np.float32(discount),
                np.bool_(start),
                {"log_prob": np.float32(0 if is_final else -time)} if extras else (),
            )
        )
    return tree.map_structure(lambda *leaves: np.stack(leaves), *parsed)


def _n_step(name: str, n: int, gamma: float, episodes: list[Episode], items: list, **flags: bool) -> AdderCase:
    return AdderCase(name, "n_step", {"n": n, "discount": gamma}, episodes, items, **flags)


_T = _transition
_DOCUMENTED = [Episode([1, 2, 4])]
_TWO = [Episode([1, 2, 4]), Episode([1, 2, 4], offset=5)]

N_STEP_CASES = [
    _n_step("1_step", 1, 1.0, _DOCUMENTED, [_T(0, 1, 1, 1), _T(1, 1, 2, 1), _T(2, 1, 4, 0)]),
    _n_step("1_step_gamma", 1, 0.5, _DOCUMENTED, [_T(0, 1, 1, 0.5), _T(1, 1, 2, 0.5), _T(2, 1, 4, 0)]),
    _n_step(
        "1_step_truncated",
        1,
        0.5,
        [Episode([1, 2], "truncate")],
        [_T(0, 1, 1, 0.5), _T(1, 1, 2, 0.5)],
    ),
    _n_step("1_step_zero_gamma", 1, 0.0, [Episode([3, 5], "truncate")], [_T(0, 1, 3, 0), _T(1, 1, 5, 0)]),
    _n_step(
        "3_step_terminated",
        3,
        0.5,
        _DOCUMENTED,
        [_T(0, 1, 1, 0.5), _T(0, 2, 2, 0.25), _T(0, 3, 3, 0), _T(1, 2, 4, 0), _T(2, 1, 4, 0)],
    ),
    _n_step(
        "3_step_truncated",
        3,
        0.5,
        [Episode([1, 2, 4], "truncate")],
        [_T(0, 1, 1, 0.5), _T(0, 2, 2, 0.25), _T(0, 3, 3, 0.125), _T(1, 2, 4, 0.25), _T(2, 1, 4, 0.5)],
    ),
    _n_step(
        "3_step_longer_episode",
        3,
        1.0,
        [Episode([1, 2, 4, 8, 16])],
        [
            *(_T(0, 1, 1, 1), _T(0, 2, 3, 1), _T(0, 3, 7, 1), _T(1, 3, 14, 1)),
            *(_T(2, 3, 28, 0), _T(3, 2, 24, 0), _T(4, 1, 16, 0)),
        ],
    ),
    _n_step(
        "3_step_environment_discount",  # R = 1 + .5 .5 2 + (.5 .5)^2 4; the last d is 0
        3,
        0.5,
        [Episode([1, 2, 4], discount=0.5)],
        [_T(0, 1, 1, 0.25), _T(0, 2, 1.5, 0.0625), _T(0, 3, 1.75, 0), _T(1, 2, 3, 0), _T(2, 1, 4, 0)],
    ),
    _n_step(
        "episode_shorter_than_n",
        5,
        0.5,
        [Episode([1, 2], "truncate")],
        [_T(0, 1, 1, 0.5), _T(0, 2, 2, 0.25), _T(1, 1, 2, 0.5)],
    ),
    _n_step("episode_of_one_step", 3, 0.5, [Episode([7])], [_T(0, 1, 7, 0)]),
    _n_step(
        "two_episodes",
        2,
        0.5,
        [Episode([1, 2]), Episode([4, 8], "truncate", offset=5)],
        [
            *(_T(0, 1, 1, 0.5), _T(0, 2, 2, 0), _T(1, 1, 2, 0)),
            *(_T(5, 1, 4, 0.5), _T(5, 2, 8, 0.25), _T(6, 1, 8, 0.5)),
        ],
    ),
    _n_step(
        "dies_in_mid_episode",  # what ends at the last observation waits for the action there
        2,
        0.5,
        [Episode([1, 2, 4], "die"), Episode([8], offset=5)],
        [_T(0, 1, 1, 0.5), _T(0, 2, 2, 0.25), _T(5, 1, 8, 0)],
    ),
    _n_step(
        "nested",
        2,
        0.5,
        [Episode([1, 2])],
        [_T(0, 1, 1, 0.5, "nested"), _T(0, 2, 2, 0, "nested"), _T(1, 1, 2, 0, "nested")],
        nested=True,
    ),
    _n_step(
        "extras",
        2,
        0.5,
        [Episode([1, 2])],
        [_T(0, 1, 1, 0.5, "extras"), _T(0, 2, 2, 0, "extras"), _T(1, 1, 2, 0, "extras")],
        extras=True,
    ),
]


def _sequence(name: str, mode: str, episodes: list[Episode], items: list[Step], **flags: Any) -> AdderCase:
    arguments = {"length": 3, "period": flags.pop("period", 2), "end_of_episode": mode}
    return AdderCase(name, "sequence", arguments, episodes, items, **flags)


_FIRST = _steps("^0:1:1", "1:2:1", "2:4:0")
_SECOND = _steps("^5:1:1", "6:2:1", "7:4:0")

SEQUENCE_CASES = [
    _sequence("pad", "pad", _TWO, [_FIRST, _steps("2:4:0", "3", "-"), _SECOND, _steps("7:4:0", "8", "-")]),
    _sequence("truncate", "truncate", _TWO, [_FIRST, _SECOND]),
    _sequence(
        "overlap",
        "overlap",
        _TWO,
        [_FIRST, _steps("1:2:1", "2:4:0", "3"), _SECOND, _steps("6:2:1", "7:4:0", "8")],
    ),
    _sequence("continue", "continue", _TWO, [_FIRST, _steps("2:4:0", "3", "^5:1:1"), _SECOND]),
    _sequence(
        "sequence_truncated_episode",
        "pad",
        [Episode([1, 2, 4], "truncate")],
        [_steps("^0:1:1", "1:2:1", "2:4:1"), _steps("2:4:1", "3", "-")],
    ),
    _sequence("pad_short_episode", "pad", [Episode([7])], [_steps("^0:7:0", "1", "-")]),
    _sequence("truncate_short_episode", "truncate", [Episode([7])], []),
    _sequence("overlap_short_episode", "overlap", [Episode([7])], [_steps("^0:7:0", "1", "-")]),
    _sequence(
        "continue_short_episodes",
        "continue",
        [Episode([7]), Episode([8], "truncate", offset=5)],
        [_steps("^0:7:0", "1", "^5:8:1")],
    ),
    _sequence("exact_fit", "pad", [Episode([1, 2])], [_steps("^0:1:1", "1:2:0", "2")]),
    _sequence("overlap_exact_fit", "overlap", [Episode([1, 2])], [_steps("^0:1:1", "1:2:0", "2")]),
    _sequence("no_overlap", "pad", _DOCUMENTED, [_FIRST, _steps("3", "-", "-")], period=3),
    _sequence(
        "period_1",
        "pad",
        _DOCUMENTED,
        [_FIRST, _steps("1:2:1", "2:4:0", "3")],
        period=1,
    ),
    _sequence(
        "sequence_dies",
        "pad",
        [Episode([1, 2, 4, 8], "die"), Episode([1, 2], offset=5)],
        [_steps("^0:1:1", "1:2:1", "2:4:1"), _steps("^5:1:1", "6:2:0", "7")],
    ),
    _sequence(
        "continue_dies",
        "continue",
        [Episode([1, 2], "die"), Episode([1, 2], offset=5)],
        [_steps("^5:1:1", "6:2:0", "7")],
    ),
    _sequence(
        "sequence_extras",
        "pad",
        [Episode([1])],
        [_steps("^0:1:0", "1", "-", extras=True)],
        extras=True,
    ),
]


def _episode(name: str, max_length: int, episodes: list[Episode], items: list[Step], **flags: Any) -> AdderCase:
    return AdderCase(name, "episode", {"max_length": max_length}, episodes, items, **flags)


EPISODE_CASES = [
    _episode("episode_padded", 4, [Episode([1, 2])], [_steps("^0:1:1", "1:2:0", "2", "-")]),
    _episode("episode_truncated", 4, [Episode([1, 2], "truncate")], [_steps("^0:1:1", "1:2:1", "2", "-")]),
    _episode("episode_exact_fit", 3, [Episode([1, 2])], [_steps("^0:1:1", "1:2:0", "2")]),
    _episode(
        "episode_split",
        4,
        [Episode([1, 2, 4, 8, 16])],
        [_steps("^0:1:1", "1:2:1", "2:4:1", "3:8:1"), _steps("4:16:0", "5", "-", "-")],
    ),
    _episode(
        "episode_dies",
        3,
        [Episode([1, 2], "die"), Episode([4], offset=5)],
        [_steps("^5:4:0", "6", "-")],
    ),
    _episode("episode_extras", 2, [Episode([1])], [_steps("^0:1:0", "1", extras=True)], extras=True),
]

CASES = [*N_STEP_CASES, *SEQUENCE_CASES, *EPISODE_CASES]
"""Every hand-computed case."""


def make_table(layout: Layout, name: str = "table", max_size: int = 1000) -> Table:
    """Makes a table that hands out every item once, oldest first."""
    return Table(name, layout, max_size, sampler=Fifo(), remover=Fifo(), rate_limiter=MinSize(1), max_times_sampled=1)


def assert_items(found: Sequence[Nest], expected: Sequence[Nest], signature: Nest) -> None:
    """Checks items for equality bit for bit, and for the shapes and dtypes of `signature`."""
    assert len(found) == len(expected), f"expected {len(expected)} items, found {len(found)}: {found}"
    for i, (item, wanted) in enumerate(zip(found, expected, strict=True)):
        specs.validate(item, signature, f"item {i}")
        tree.assert_same_structure(item, wanted)  # What maps over both takes () for a nest of nothing.
        tree.map_structure_with_path(
            lambda path, x, y, i=i: np.testing.assert_array_equal(x, y, err_msg=f"item {i}, leaf {path}"),
            item,
            wanted,
        )


class RecordedItem(NamedTuple):
    """Holds an item as a `RecordingWriter` received it."""

    table: str
    priority: float
    data: Nest


class RecordingWriter(Writer):
    """Keeps the items it is given in `items`, and holds its caller to the writer's interface."""

    def __init__(self, tables: Sequence[Table], history: int):
        """Makes a writer to `tables`, of one step structure."""
        self._tables = index_tables(tables)
        self._layouts = {table.name: table.layout for table in tables}
        self._step = tables[0].layout.step
        self._history = history
        self._rows: list[Nest] = []
        self._ended = False
        self.items: list[RecordedItem] = []
        self.is_closed = False

    def append(self, step: Nest) -> int:
        """See `Writer`."""
        specs.validate(step, self._step, "step")
        assert not self._ended, "a step was appended behind padding"
        self._rows.append(nests.copy_nest(step))
        return len(self._rows) - 1

    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int | None:
        """See `Writer`."""
        layout = self._layouts[table]
        priority = FIRST_PRIORITY if priority is None else priority
        check_priority(table, priority)
        specs.validate(inline, layout.inline, "inline values")
        oldest = max(0, len(self._rows) - self._history)
        assert oldest <= start < stop <= len(self._rows), f"[{start}, {stop}) is not in the history"
        assert layout.length is None or stop - start + padding == layout.length
        self._ended = padding > 0
        zero = specs.zeros(layout.step)
        rows = [tree.flatten(row) for row in self._rows[start:stop] + [zero] * padding]
        values = tree.flatten(inline)

        def leaf(source: Any) -> np.ndarray:
            if isinstance(source, FromInline):
                return np.asarray(values[source.column])
            if source.select is Select.ALL:
                return np.stack([row[source.column] for row in rows])
            return rows[0 if source.select is Select.FIRST else -1][source.column]

        data = tree.map_structure(leaf, layout.data)
        specs.validate(data, layout.signature, "item")
        self.items.append(RecordedItem(table, priority, data))
        return len(self.items) - 1

    def end_episode(self) -> None:
        """See `Writer`."""
        self._rows = []
        self._ended = False

    def flush(self) -> None:
        """See `Writer`."""

    def close(self) -> None:
        """See `Writer`."""
        self.is_closed = True

    def save(self) -> dict[str, Any]:
        """See `Writer`; the items are not in it."""
        rows = {str(i): nests.number_leaves(r) for i, r in enumerate(self._rows)}
        return {"rows": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Writer`."""
        rows = [state["rows"][str(i)] for i in range(len(state["rows"]))]
        self._rows = [tree.unflatten_as(self._step, [row[str(j)] for j in range(len(row))]) for row in rows]


class AdderContract(abc.ABC):
    """Checks every adder in every case on one kind of replay."""

    @abc.abstractmethod
    def make_replay(self, tables: Sequence[Table]) -> Replay:
        """Makes a new replay of these tables."""

    def read(self, replay: Replay, table: str) -> list[Nest]:
        """Returns every item of a table made by `make_table`, oldest first."""
        items: list[Nest] = []
        count = replay.info(table).size
        if count == 0:
            return items
        sampler = replay.sampler(table, 1)
        try:
            for _ in range(count):
                items.append(tree.map_structure(lambda x: x[0], next(sampler).sample.data))
        finally:
            sampler.close()
        return items

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_case(self, case: AdderCase) -> None:
        """Checks that items come out of replay as they were computed by hand."""
        table = make_table(case.layout)
        with self.make_replay([table]) as replay:
            adder = case.make_adder(replay.writer)
            for episode in case.episodes:
                play(adder, episode, nested=case.nested, extras=case.extras)
            adder.close()
            assert_items(self.read(replay, "table"), case.items, table.signature)

    @pytest.mark.parametrize("name", ["3_step_truncated", "pad", "episode_padded"])
    def test_two_tables(self, name: str) -> None:
        """Checks that one adder feeds two tables with the same items."""
        case = next(case for case in CASES if case.name == name)
        tables = [make_table(case.layout, "a"), make_table(case.layout, "b")]
        with self.make_replay(tables) as replay:
            adder = case.make_adder(replay.writer, {"a": None, "b": lambda data: 2.0})
            for episode in case.episodes:
                play(adder, episode)
            adder.close()
            for table in tables:
                assert_items(self.read(replay, table.name), case.items, table.signature)

    @pytest.mark.parametrize("name", ["3_step_longer_episode", "pad", "overlap", "continue", "episode_split"])
    def test_priority_function_sees_the_item(self, name: str) -> None:
        """Checks that a priority function gets the item's data, and that its value arrives in replay."""
        case = next(case for case in CASES if case.name == name)
        table = make_table(case.layout)
        seen: list[Nest] = []

        def priority(data: Nest) -> float:
            seen.append(data)
            return float(len(seen))

        with self.make_replay([table]) as replay:
            adder = case.make_adder(replay.writer, {"table": priority})
            for episode in case.episodes:
                play(adder, episode)
            adder.close()
            assert_items(seen, case.items, table.signature)
            sampler = replay.sampler("table", 1)
            priorities = [next(sampler).sample.info.priority[0] for _ in seen]
            sampler.close()
        assert priorities == [float(i + 1) for i in range(len(seen))]

    @pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
    def test_bad_priority_is_refused(self, bad: float) -> None:
        """Checks that a bad priority is refused before it reaches the table."""
        case = N_STEP_CASES[0]
        with self.make_replay([make_table(case.layout)]) as replay:
            adder = case.make_adder(replay.writer, {"table": lambda data: bad})
            with pytest.raises(SpecError, match="priority must be finite"):
                play(adder, Episode([1]))
            adder.reset()
            adder.close()

    def test_an_environment_may_reuse_its_buffers(self) -> None:
        """Checks that observations are stored as they were observed, whatever the buffer holds later."""
        case = N_STEP_CASES[0]
        table = make_table(case.layout)
        with self.make_replay([table]) as replay:
            adder = case.make_adder(replay.writer)
            buffer = np.zeros(2, np.float32)
            adder.add_first(dm_env.restart(buffer))
            for t, (act, timestep, _) in enumerate(steps_of(case.episodes[0])):
                buffer[:] = observation(t + 1)
                adder.add(act, timestep._replace(observation=buffer))
            buffer[:] = -1
            adder.close()
            assert_items(self.read(replay, "table"), case.items, table.signature)

    def test_close_twice(self) -> None:
        """Checks that an adder may be closed again."""
        case = N_STEP_CASES[0]
        with self.make_replay([make_table(case.layout)]) as replay:
            adder = case.make_adder(replay.writer)
            play(adder, case.episodes[0])
            adder.close()
            adder.close()

    def test_too_long_episode_is_refused(self) -> None:
        """Checks that too_long="error" writes nothing of a too long episode, but all of the next one."""
        table = make_table(EpisodeAdder.layout(SPEC, 3))
        with self.make_replay([table]) as replay:
            writer = replay.writer(EpisodeAdder.history(3))
            adder = EpisodeAdder(writer, SPEC, tables="table", max_length=3, too_long="error")
            with pytest.raises(ConfigError, match="more than max_length = 3"):
                play(adder, Episode([1, 2, 3]))
            adder.reset()
            play(adder, Episode([1, 2]))
            adder.close()
            expected = [_steps("^0:1:1", "1:2:0", "2")]
            assert_items(self.read(replay, "table"), expected, table.signature)
