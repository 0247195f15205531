"""The n-step adder: transitions over up to n steps, for agents that learn from single transitions."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import tree

from agentkit import core, nests, specs
from agentkit.adders import base
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.replay.base import Replay, Writer
from agentkit.replay.table import FromInline, FromStep, Layout, Select, number_leaves
from agentkit.types import Nest, Transition


class NStepRow(NamedTuple):
    """Holds one step: o_t, a_t, the policy's extras, and True where o_t is an episode's first, if that is stored."""

    observation: Nest
    action: Nest
    extras: Nest
    start_of_episode: Nest = ()


class NStepReturn(NamedTuple):
    """Holds an item's own data; see `Transition`."""

    reward: Nest
    discount: Nest


class NStepAdder(core.Adder):
    """Writes `Transition` items over the last n steps (fewer at both ends of an episode).

    With r_t, d_t the environment's reward and discount on arriving at o_t, a transition over the k
    steps from t (Sutton & Barto 2018, eq. 7.1, with a discount per step) has:

        reward   = r_{t+1} + (gamma d_{t+1}) r_{t+2} + ... + (gamma^{k-1} d_{t+1} ... d_{t+k-1}) r_{t+k}
        discount = gamma^k d_{t+1} ... d_{t+k}
        observation, action, extras = those of t;   next_observation = o_{t+k}

    so that ``reward + discount * value(next_observation)`` is the target, and no loss applies gamma
    again. On every arrival at o_t, the transition over the last k = min(n, t) steps is written; at
    the end of an episode follow those over the last k - 1, ..., 1 steps. An episode of L steps gives
    L + n - 1 items if L >= n, else 2 L - 1; for n = 1 one item per step. So o_0 is the first of n items, others of
    one: as in Acme, and other than in DQN Zoo, which writes nothing before step n.

    Termination (d_L = 0) makes the discount of all items that end at o_L zero; truncation (d_L = 1)
    leaves it gamma^k, so they bootstrap from o_L.

    Example, n = 3, gamma = 0.5, an episode of L = 3 steps with rewards 1, 2, 4 that terminates. Then a
    transition is observation -> next_observation: reward, discount:

        o_0 -> o_1: 1,                   0.5
        o_0 -> o_2: 1 + 0.5 * 2 = 2,     0.25
        o_0 -> o_3: 2 + 0.25 * 4 = 3,    0
        o_1 -> o_3: 2 + 0.5 * 4 = 4,     0
        o_2 -> o_3: 4,                   0

    Had it been truncated, the last three discounts were 0.125, 0.25 and 0.5.

    An item refers to the row of its last observation, which is stored together with the action taken
    there: so the items that end at o_t are written when a_t is added, those that end at o_L at once.

    Rewards and discounts may be nests of arrays. One discount goes with all rewards; else there is a
    discount for every reward, in the same structure. The sums are taken in float64 and stored in the
    reward spec's dtype (float32 where that is no floating point type). After an error from the writer,
    call `reset`.
    """

    def __init__(
        self,
        writer: Writer | Replay,
        spec: specs.EnvironmentSpec,
        *,
        tables: base.Tables,
        n: int,
        discount: float,
        extras_spec: Nest = (),
        marks_starts: bool = False,
    ):
        """Makes an n-step adder.

        Args:
            writer: with `NStepAdder.history`, or the replay, which is asked for one; its tables have
                `NStepAdder.layout`.
            spec: of the environment.
            tables: to feed; see `agentkit.adders.base.Tables`.
            n: steps that are summed at most.
            discount: gamma, 0 to 1.
            extras_spec: nest of array specs of the extras given to `add`.
            marks_starts: whether the rows say where an episode starts, for items with a history.

        Raises:
            ConfigError: a setting is impossible.
        """
        if n < 1:
            raise ConfigError(f"n must be at least 1, found {n}.")
        if not 0 <= discount <= 1:
            raise ConfigError(f"discount (gamma) must be between 0 and 1, found {discount!r}.")
        self._writer = base.find_writer(writer, self.history(n))
        self._spec = spec
        self._tables = base.parse_tables(tables)
        self._gamma = float(discount)
        self._extras_spec = extras_spec
        layout = self.layout(spec, extras_spec, marks_starts)
        self._marks_starts = marks_starts
        self._row_spec = layout.step
        self._zero = specs.zeros(layout.step)
        self._returns = _Returns(spec, layout.inline)
        # The last n pairs (reward, discount) of this episode, oldest first.
        self._window: collections.deque[tuple[Any, Any]] = collections.deque(maxlen=n)
        self._observation: Nest = None  # not yet stored; None between episodes
        self._is_first = False
        self._recent: collections.deque[NStepRow] | None = None  # rows, for the priority functions alone
        if any(function is not None for _, function in self._tables):
            self._recent = collections.deque(maxlen=n + 1)

    @staticmethod
    def layout(spec: specs.EnvironmentSpec, extras_spec: Nest = (), marks_starts: bool = False) -> Layout:
        """Returns the layout of the items, for `Table.layout`; its `signature` is a `Transition` of specs.

        Raises:
            SpecError: the discounts do not go with the rewards.
        """
        start = specs.Array((), bool, "start_of_episode") if marks_starts else ()
        row = specs.to_arrays(NStepRow(spec.observations, spec.actions, extras_spec, start))
        columns = number_leaves(row)
        returns = tree.map_structure(_floating, NStepReturn(spec.rewards, spec.discounts))
        inline = tree.unflatten_as(returns, [FromInline(i) for i in range(len(tree.flatten(returns)))])

        def take(nest: Nest, select: Select) -> Nest:
            return tree.map_structure(lambda column: FromStep(column, select), nest)

        data = Transition(
            observation=take(columns.observation, Select.FIRST),
            action=take(columns.action, Select.FIRST),
            reward=inline.reward,
            discount=inline.discount,
            next_observation=take(columns.observation, Select.LAST),
            extras=take(columns.extras, Select.FIRST),
        )
        return Layout(step=row, data=data, inline=returns)

    @staticmethod
    def history(n: int) -> int:
        """Returns the history that `Replay.writer` needs: the rows of n + 1 observations."""
        return n + 1

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        base.check_first(timestep, self._spec, self._observation is not None)
        self._observation = nests.copy_nest(timestep.observation)
        self._is_first = True

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Writes the item that ends where `action` was taken; on LAST all that remain."""
        base.check_next(next_timestep, self._observation is not None)
        start = np.bool_(self._is_first) if self._marks_starts else ()
        if self._is_first:
            base.check_extras(extras, self._extras_spec)
            self._is_first = False
        pair = self._returns.pair(next_timestep.reward, next_timestep.discount)
        index = self._append(NStepRow(self._observation, action, extras, start))
        if self._window:
            self._create_items(index)
        self._window.append(pair)
        self._observation = nests.copy_nest(next_timestep.observation)
        if next_timestep.last():
            index = self._append(self._zero._replace(observation=self._observation))
            while self._window:
                self._create_items(index)
                self._window.popleft()
            self.reset()

    def _append(self, row: NStepRow) -> int:
        index = self._writer.append(row)
        if self._recent is not None:
            self._recent.append(nests.copy_nest(row))
        return index

    def _create_items(self, index: int) -> None:
        """Creates an item in every table, from the window's first step to row `index`."""
        inline = self._returns.sums(self._window, self._gamma)
        for table, function in self._tables:
            priority = None if function is None else float(function(self._data(inline)))
            self._writer.create_item(table, priority, index - len(self._window), index + 1, inline)

    def _data(self, inline: NStepReturn) -> Transition:
        assert self._recent is not None
        first, last = self._recent[-1 - len(self._window)], self._recent[-1]
        return Transition(first.observation, first.action, *inline, last.observation, first.extras)

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._window.clear()
        self._observation = None
        if self._recent is not None:
            self._recent.clear()
        self._writer.end_episode()

    def close(self) -> None:
        """Confirms everything written and frees the writer. May be called twice."""
        self._writer.close()

    def save(self) -> dict[str, Any]:
        """Returns the state, in mid-episode too (a `Saveable`), with that of the writer."""
        return {
            "writer": self._writer.save(),
            "observation": None if self._observation is None else nests.number_leaves(self._observation),
            "is_first": self._is_first,
            "window": {str(i): nests.number_leaves(pair) for i, pair in enumerate(self._window)},
            "recent": {str(i): nests.number_leaves(row) for i, row in enumerate(self._recent or ())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, after the replay was restored."""
        writer, observation, is_first, window, recent = base.read(
            state, "writer", "observation", "is_first", "window", "recent"
        )
        if observation is not None:
            observation = nests.restore_from_numbers(observation, self._spec.observations, "observation")
        if len(window) > (self._window.maxlen or 0):
            raise CheckpointError(
                f"The saved adder sums more steps ({len(window)}) than this one (n = {self._window.maxlen})."
            )
        pairs = [self._returns.unpack(pair) for pair in base.read_list(window)]
        rows = [nests.restore_from_numbers(row, self._row_spec, "row") for row in base.read_list(recent)]
        self._writer.restore(writer)
        self._observation = observation
        self._is_first = bool(is_first)
        self._window.clear()
        self._window.extend(pairs)
        if self._recent is not None:
            self._recent.clear()
            self._recent.extend(rows)


class _Returns:
    """Sums rewards and multiplies discounts: as Python floats where they are scalars, else as lists of leaves."""

    def __init__(self, spec: specs.EnvironmentSpec, inline: NStepReturn):
        self._scalar = base.is_scalar(spec.rewards) and base.is_scalar(spec.discounts)
        self._pair_spec = _in_float64((spec.rewards, spec.discounts))
        self._cast_reward = base.make_cast(self._pair_spec[0], "reward")
        self._cast_discount = base.make_cast(self._pair_spec[1], "discount")
        self._inline = inline
        rewards, discounts = tree.flatten(spec.rewards), tree.flatten(spec.discounts)
        if len(discounts) == 1:
            discounts = discounts * len(rewards)
            self._partners = [0] * len(rewards)  # which discount goes with each reward
        else:
            _check_partners(spec)
            self._partners = list(range(len(rewards)))
        for reward, discount in zip(rewards, discounts, strict=True):
            if np.broadcast_shapes(reward.shape, discount.shape) != reward.shape:
                raise SpecError(
                    f"A discount of shape {list(discount.shape)} cannot multiply a reward of shape "
                    f"{list(reward.shape)}."
                )
        if self._scalar:
            self._reward_type = inline.reward.dtype.type
            self._discount_type = inline.discount.dtype.type

    def pair(self, reward: Nest, discount: Nest) -> tuple[Any, Any]:
        """Checks one step's reward and discount, and returns them as the window holds them."""
        if self._scalar:
            if type(reward) is float and type(discount) is float:
                return reward, discount
            return float(self._cast_reward(reward)), float(self._cast_discount(discount))
        return tree.flatten(self._cast_reward(reward)), tree.flatten(self._cast_discount(discount))

    def sums(self, window: Sequence[tuple[Any, Any]], gamma: float) -> NStepReturn:
        """Returns the n-step reward and discount over the window, oldest step first."""
        if self._scalar:
            reward, discount = _discounted(window, gamma)
            return NStepReturn(self._reward_type(reward), self._discount_type(discount))
        rewards = [_discounted([(r[i], d[j]) for r, d in window], gamma)[0] for i, j in enumerate(self._partners)]
        num_discounts = len(tree.flatten(self._inline.discount))
        discounts = [_discounted([(0.0, d[j]) for _, d in window], gamma)[1] for j in range(num_discounts)]
        specs_flat = tree.flatten(self._inline)
        leaves = [np.asarray(x, s.dtype) for x, s in zip(rewards + discounts, specs_flat, strict=True)]
        return tree.unflatten_as(self._inline, leaves)

    def unpack(self, state: dict[str, np.ndarray]) -> tuple[Any, Any]:
        """Returns the pair that a checkpoint holds as numbered leaves."""
        reward, discount = nests.restore_from_numbers(state, self._pair_spec, "rewards and discounts")
        if self._scalar:
            return float(reward), float(discount)
        return tree.flatten(reward), tree.flatten(discount)


def _discounted(window: Sequence[tuple[Any, Any]], gamma: float) -> tuple[Any, Any]:
    """Returns ``(r_1 + gamma d_1 (r_2 + gamma d_2 (...)), gamma^k d_1 ... d_k)``, from the last step backwards."""
    total, factor = 0.0, 1.0
    for reward, discount in reversed(window):
        weight = gamma * discount
        total = reward + weight * total
        factor = factor * weight
    return total, factor


def _floating(spec: specs.Array) -> specs.Array:
    """Returns `spec`, as float32 where it is no floating point type: discounted sums are no integers."""
    dtype = spec.dtype if np.issubdtype(spec.dtype, np.floating) else np.dtype(np.float32)
    return specs.Array(spec.shape, dtype, spec.name)


def _in_float64(spec: Nest) -> Nest:
    return tree.map_structure(lambda s: specs.Array(s.shape, np.float64, s.name), spec)


def _check_partners(spec: specs.EnvironmentSpec) -> None:
    try:
        tree.assert_same_structure(spec.rewards, spec.discounts)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"Expected one discount, or one for every reward: rewards are {specs.leaf_names(spec.rewards)}, "
            f"discounts {specs.leaf_names(spec.discounts)}. {error}"
        ) from error
