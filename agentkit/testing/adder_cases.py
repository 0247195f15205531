"""Hand-computed cases for adders: environments, episodes, and the items that must come out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import tree

from agentkit import core, specs
from agentkit.adders import EpisodeAdder, NStepAdder, SequenceAdder, Tables
from agentkit.replay.base import Writer
from agentkit.replay.table import Layout
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
        kind = SequenceAdder if self.adder == "sequence" else EpisodeAdder
        return kind.layout(self.spec, self.arguments["length"], extras_spec)

    def make_adder(self, make_writer: Callable[[int], Writer], tables: Tables = "table") -> core.Adder:
        """Makes the adder, on a writer of the history it needs."""
        kwargs = {"tables": tables, "extras_spec": EXTRAS_SPEC if self.extras else (), **self.arguments}
        if self.adder == "n_step":
            return NStepAdder(make_writer(NStepAdder.history(kwargs["n"])), self.spec, **kwargs)
        if self.adder == "sequence":
            return SequenceAdder(make_writer(SequenceAdder.history(kwargs["length"])), self.spec, **kwargs)
        return EpisodeAdder(make_writer(EpisodeAdder.history()), self.spec, **kwargs)


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


def expected_steps(*rows: str, extras: bool = False) -> Step:
    """Returns the expected sequence.

    A row is ``t:reward:discount`` (``^`` before t: start of episode), ``t`` alone for the final row, ``^t`` for
    padding behind it.
    """
    parsed = []
    for row in rows:
        start, row = row.startswith("^"), row.removeprefix("^")
        t, reward, discount = [*row.split(":"), "0", "0"][:3]
        is_final, time = ":" not in row, int(t)
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


_FIRST = expected_steps("^0:1:1", "1:2:1", "2:4:0")
_SECOND = expected_steps("^5:1:1", "6:2:1", "7:4:0")

SEQUENCE_CASES = [
    _sequence(
        "pad", "pad", _TWO, [_FIRST, expected_steps("2:4:0", "3", "^3"), _SECOND, expected_steps("7:4:0", "8", "^8")]
    ),
    _sequence("truncate", "truncate", _TWO, [_FIRST, _SECOND]),
    _sequence(
        "overlap",
        "overlap",
        _TWO,
        [_FIRST, expected_steps("1:2:1", "2:4:0", "3"), _SECOND, expected_steps("6:2:1", "7:4:0", "8")],
    ),
    _sequence("continue", "continue", _TWO, [_FIRST, expected_steps("2:4:0", "3", "^5:1:1"), _SECOND]),
    _sequence(
        "sequence_truncated_episode",
        "pad",
        [Episode([1, 2, 4], "truncate")],
        [expected_steps("^0:1:1", "1:2:1", "2:4:1"), expected_steps("2:4:1", "3", "^3")],
    ),
    _sequence("pad_short_episode", "pad", [Episode([7])], [expected_steps("^0:7:0", "1", "^1")]),
    _sequence("truncate_short_episode", "truncate", [Episode([7])], []),
    _sequence("overlap_short_episode", "overlap", [Episode([7])], [expected_steps("^0:7:0", "1", "^1")]),
    _sequence(
        "continue_short_episodes",
        "continue",
        [Episode([7]), Episode([8], "truncate", offset=5)],
        [expected_steps("^0:7:0", "1", "^5:8:1")],
    ),
    _sequence("exact_fit", "pad", [Episode([1, 2])], [expected_steps("^0:1:1", "1:2:0", "2")]),
    _sequence("overlap_exact_fit", "overlap", [Episode([1, 2])], [expected_steps("^0:1:1", "1:2:0", "2")]),
    _sequence("no_overlap", "pad", _DOCUMENTED, [_FIRST, expected_steps("3", "^3", "^3")], period=3),
    _sequence(
        "period_1",
        "pad",
        _DOCUMENTED,
        [_FIRST, expected_steps("1:2:1", "2:4:0", "3")],
        period=1,
    ),
    _sequence(
        "sequence_dies",
        "pad",
        [Episode([1, 2, 4, 8], "die"), Episode([1, 2], offset=5)],
        [expected_steps("^0:1:1", "1:2:1", "2:4:1"), expected_steps("^5:1:1", "6:2:0", "7")],
    ),
    _sequence(
        "continue_dies",
        "continue",
        [Episode([1, 2], "die"), Episode([1, 2], offset=5)],
        [expected_steps("^5:1:1", "6:2:0", "7")],
    ),
    _sequence(
        "sequence_extras",
        "pad",
        [Episode([1])],
        [expected_steps("^0:1:0", "1", "^1", extras=True)],
        extras=True,
    ),
]


def _episode(name: str, length: int, episodes: list[Episode], items: list[Step], **flags: Any) -> AdderCase:
    arguments = {"length": length, "too_long": flags.pop("too_long", "error")}
    return AdderCase(name, "episode", arguments, episodes, items, **flags)


EPISODE_CASES = [
    _episode("episode_padded", 3, [Episode([1, 2])], [expected_steps("^0:1:1", "1:2:0", "2", "^2")]),
    _episode("episode_truncated", 3, [Episode([1, 2], "truncate")], [expected_steps("^0:1:1", "1:2:1", "2", "^2")]),
    _episode("episode_exact_fit", 2, [Episode([1, 2])], [expected_steps("^0:1:1", "1:2:0", "2")]),
    _episode(
        "episode_split",
        3,
        [Episode([1, 2, 4, 8, 16])],
        [expected_steps("^0:1:1", "1:2:1", "2:4:1", "3"), expected_steps("3:8:1", "4:16:0", "5", "^5")],
        too_long="split",
    ),
    _episode(
        "episode_dies",
        2,
        [Episode([1, 2], "die"), Episode([4], offset=5)],
        [expected_steps("^5:4:0", "6", "^6")],
    ),
    _episode("episode_extras", 1, [Episode([1])], [expected_steps("^0:1:0", "1", extras=True)], extras=True),
]

CASES = [*N_STEP_CASES, *SEQUENCE_CASES, *EPISODE_CASES]
"""Every hand-computed case."""
