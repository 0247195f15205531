"""The hindsight adder: each step also as if what came later had been the goal."""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import dm_env
import numpy as np
import tree

from agentkit import core, nests, specs
from agentkit.adders import base
from agentkit.errors import ConfigError, SpecError
from agentkit.replay.base import Replay, Writer
from agentkit.replay.table import FromInline, FromStep, Layout, Select, number_leaves
from agentkit.types import Nest, Transition

GOAL_KEYS = ("achieved_goal", "desired_goal", "observation")

Strategy = Literal["future", "final", "episode"]

GoalFn = Callable[[np.ndarray, np.ndarray], Any]
"""``(achieved [N, ...], desired [N, ...]) -> [N]``, row by row: a reward, or whether the goal ends the episode."""


@dataclasses.dataclass(frozen=True)
class Hindsight:
    """Says which other goals a step gets, and which reward and discount follow from them.

    Attributes:
        compute_reward: ``(achieved [N, ...], desired [N, ...]) -> float [N]``, the environment's own. No wrapper
            touches what it returns: where one changes the steps' rewards (reward_scale, clip_reward, action_repeat),
            it has to do the same. An adder compares the two in its first episode that has rewards, and warns.
        compute_terminated: ``(achieved, desired) -> bool [N]``, whether the environment ends an episode there; None
            where goals end none.
        strategy: where the goals come from: "future", "final" or "episode"; see `HindsightAdder`.
        num_relabelled: k, goals for each step; None for 4, and 1 with "final".
        seed: of the goals drawn, which depend on it, on the number of episodes before and on what the episode achieved:
            environments, actors and runs draw other ones.
    """

    compute_reward: GoalFn
    compute_terminated: GoalFn | None = None
    strategy: Strategy = "future"
    num_relabelled: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise ConfigError(f"strategy must be one of {get_args(Strategy)}, found {self.strategy!r}.")
        is_final = self.strategy == "final"
        if self.num_relabelled is None:
            object.__setattr__(self, "num_relabelled", 1 if is_final else 4)
        elif self.num_relabelled < 0 or (is_final and self.num_relabelled > 1):
            raise ConfigError(
                "num_relabelled must be at least 0, and at most 1 with strategy 'final' (there is one final goal), "
                f"found {self.num_relabelled}."
            )


class HindsightRow(NamedTuple):
    """Holds one step: o_t without the goal that was asked for, a_t and the policy's extras."""

    observation: dict[str, Nest]
    action: Nest
    extras: Nest


class HindsightInline(NamedTuple):
    """Holds an item's own data: a goal, and the reward and discount that it gives the step."""

    reward: Nest
    discount: Nest
    desired_goal: Nest


class _Step(NamedTuple):
    row: HindsightRow
    desired: np.ndarray
    reward: np.ndarray
    discount: np.ndarray


class HindsightAdder(core.Adder):
    """Writes one-step `Transition`s, each also with goals that were achieved (Andrychowicz et al. 2017, 1707.01495).

    Observations are as gymnasium-robotics has them: a dict of "observation", "achieved_goal" and
    "desired_goal", both goals of one shape. The desired one must stay within an episode: an item's two observations
    both have that of o_t. An episode of L steps gives ``L (1 + k)`` items, step by step: the
    step as it was, then k times with a goal g that the episode achieved in place of the desired one, drawn
    uniformly by `strategy` (section 4.5 of the paper; achieved_t is that of o_t)

    * ``"future"``: from achieved_{t+1} ... achieved_L;
    * ``"episode"``: from achieved_1 ... achieved_L;
    * ``"final"``: achieved_L, once (k = 1).

    A relabelled step has ``reward = compute_reward(achieved_{t+1}, g)``. Its discount is what the step would have
    under g:

    * Without `compute_terminated` goals end no episode: gamma times the environment's discount, as of the step
      itself. So a termination (a fall) stays one under any goal, and a truncation bootstraps.
    * With it, it is 0 where ``compute_terminated(achieved_{t+1}, g)``. A termination of the environment counts for
      other goals only if it was not its own goal that did it: where ``compute_terminated(achieved_{t+1}, desired)``
      is true, the step under another goal has discount gamma. Otherwise (a fall) it is 0 for all.

    The items are written at LAST and nothing before, so that `reset` in mid-episode leaves nothing. A step is stored
    once, whatever k is. After an error from the writer, call `reset`.
    """

    def __init__(
        self,
        writer: Writer | Replay,
        spec: specs.EnvironmentSpec,
        *,
        tables: base.Tables,
        discount: float,
        hindsight: Hindsight,
        extras_spec: Nest = (),
        compares_rewards: bool = True,
    ):
        """Makes a hindsight adder.

        Args:
            writer: with `HindsightAdder.history`, or the replay, which is asked for one; its tables have
                `HindsightAdder.layout`.
            spec: of the environment.
            tables: to feed; see `agentkit.adders.base.Tables`.
            discount: gamma, 0 to 1.
            hindsight: which other goals, and what they make of a step.
            extras_spec: nest of array specs of the extras given to `add`.
            compares_rewards: whether it warns where rewards are not what `compute_reward` says; of the adders of many
                environments one is enough.

        Raises:
            ConfigError: a setting is impossible.
            SpecError: the environment has no goals, or rewards or discounts that are no scalars.
        """
        if not 0 <= discount <= 1:
            raise ConfigError(f"discount (gamma) must be between 0 and 1, found {discount!r}.")
        layout = self.layout(spec, extras_spec)
        self._writer = base.find_writer(writer, self.history())
        self._spec = spec
        self._tables = base.parse_tables(tables)
        self._gamma = float(discount)
        self._hindsight = hindsight
        self._num_relabelled = hindsight.num_relabelled or 0
        self._compares = compares_rewards
        self._extras_spec = extras_spec
        self._step_spec = _Step(layout.step, layout.inline.desired_goal, spec.rewards, spec.discounts)
        self._zero = specs.zeros(layout.step)
        self._inline = layout.inline
        self._cast_reward = base.make_cast(spec.rewards, "reward")
        self._cast_discount = base.make_cast(spec.discounts, "discount")
        self._cast_action = base.make_cast(spec.actions, "action")
        self._num_episodes = 0
        self._steps: list[_Step] = []
        self._observation: Nest = None  # the newest, not yet in a step; None between episodes

    @staticmethod
    def layout(spec: specs.EnvironmentSpec, extras_spec: Nest = ()) -> Layout:
        """Returns the layout of the items, for `Table.layout`: their data are as those of `NStepAdder.layout`.

        Raises:
            SpecError: the environment has no goals, or rewards or discounts that are no scalars.
        """
        check_goals(spec)
        goalless = {key: spec.observations[key] for key in GOAL_KEYS if key != "desired_goal"}
        row = specs.to_arrays(HindsightRow(goalless, spec.actions, extras_spec))
        columns = number_leaves(row)
        reward = spec.rewards if np.issubdtype(spec.rewards.dtype, np.floating) else specs.Array((), np.float32)
        inline = specs.to_arrays(HindsightInline(reward, spec.discounts, spec.observations["desired_goal"]))

        def take(nest: Nest, select: Select) -> Nest:
            return tree.map_structure(lambda column: FromStep(column, select), nest)

        data = Transition(
            observation={**take(columns.observation, Select.FIRST), "desired_goal": FromInline(2)},
            action=take(columns.action, Select.FIRST),
            reward=FromInline(0),
            discount=FromInline(1),
            next_observation={**take(columns.observation, Select.LAST), "desired_goal": FromInline(2)},
            extras=take(columns.extras, Select.FIRST),
        )
        return Layout(step=row, data=data, inline=inline)

    @staticmethod
    def history() -> int:
        """Returns the history that `Replay.writer` needs: the rows of two observations."""
        return 2

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        base.check_first(timestep, self._spec, self._observation is not None)
        self._observation = nests.copy_nest(timestep.observation)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Keeps a step; on LAST writes the episode's items."""
        base.check_next(next_timestep, self._observation is not None)
        if not self._steps:
            base.check_extras(extras, self._extras_spec)
        goalless = {key: self._observation[key] for key in GOAL_KEYS if key != "desired_goal"}
        row = HindsightRow(goalless, nests.copy_nest(self._cast_action(action)), nests.copy_nest(extras))
        reward, discount = self._cast_reward(next_timestep.reward), self._cast_discount(next_timestep.discount)
        self._steps.append(_Step(row, self._observation["desired_goal"], reward, discount))
        self._observation = nests.copy_nest(next_timestep.observation)
        if next_timestep.last():
            self._write_episode()
            self.reset()

    def _write_episode(self) -> None:
        """Writes the rows and items of a whole episode, each item as soon as its second row is stored."""
        last = {key: self._observation[key] for key in GOAL_KEYS if key != "desired_goal"}
        rows = [*(step.row for step in self._steps), self._zero._replace(observation=last)]
        items = self._items(np.stack([row.observation["achieved_goal"] for row in rows[1:]]))
        self._num_episodes += 1
        index = self._writer.append(rows[0])
        for before, row, inlines in zip(rows, rows[1:], items, strict=False):
            index = self._writer.append(row)
            for inline in inlines:
                self._create_item(index, inline, before, row)

    def _items(self, achieved: np.ndarray) -> list[list[HindsightInline]]:
        """Returns each step's items' own values; `achieved` are the goals that the L steps led to, ``[L, ...]``."""
        length, k = len(self._steps), self._num_relabelled
        goals = achieved[self._draw_goals(achieved)]  # [L, k, ...]
        flat = goals.reshape(length * k, *achieved.shape[1:])
        reached = np.repeat(achieved, k, axis=0)
        rewards = self._judge_goals(self._hindsight.compute_reward, "compute_reward", reached, flat).reshape(length, k)
        if k and self._compares:
            self._compare_rewards(achieved)
        discounts = np.repeat(self._gamma * np.array([s.discount for s in self._steps])[:, None], k, axis=1)
        if self._hindsight.compute_terminated is not None:
            desired = np.stack([step.desired for step in self._steps])
            name = "compute_terminated"
            own = self._judge_goals(self._hindsight.compute_terminated, name, achieved, desired).astype(bool)
            ends = (
                self._judge_goals(self._hindsight.compute_terminated, name, reached, flat)
                .astype(bool)
                .reshape(length, k)
            )
            discounts = np.where(own[:, None], self._gamma, discounts) * ~ends
        items = []
        for t, step in enumerate(self._steps):
            true = self._item(step.reward, self._gamma * step.discount, step.desired)
            items.append([true, *(self._item(rewards[t, i], discounts[t, i], goals[t, i]) for i in range(k))])
        return items

    def _compare_rewards(self, achieved: np.ndarray) -> None:
        """Warns where the steps have other rewards than `compute_reward` gives them."""
        desired = np.stack([step.desired for step in self._steps])
        own = self._judge_goals(self._hindsight.compute_reward, "compute_reward", achieved, desired).astype(float)
        rewards = np.array([step.reward for step in self._steps], float)
        alike = np.isclose(own, rewards, rtol=1e-4, atol=1e-5)
        self._compares = not (np.any(own) or np.any(rewards))  # An episode without rewards tells nothing.
        if not np.all(alike):
            t = int(np.argmin(alike))
            warnings.warn(
                f"Rewards of the steps are not what compute_reward says: step {t} has {rewards[t]:g}, compute_reward "
                f"gives {own[t]:g}, and with other goals steps get the latter. Leave wrappers that change rewards out, "
                "or have compute_reward do the same; with_normalization(rewards=True) scales both.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _draw_goals(self, achieved: np.ndarray) -> np.ndarray:
        """Draws for each of L steps the k steps whose achieved goals it gets, ``[L, k]`` of 0 ... L - 1."""
        length = len(achieved)
        shape = (length, self._num_relabelled)
        if self._hindsight.strategy == "final":
            return np.full(shape, length - 1)
        own = zlib.crc32(achieved.tobytes())  # Else all environments of all actors and runs would draw alike.
        rng = np.random.default_rng([self._hindsight.seed, self._num_episodes, own])
        least = np.arange(length)[:, None] if self._hindsight.strategy == "future" else 0
        return rng.integers(least, length, shape)

    def _judge_goals(self, function: GoalFn, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        values = np.asarray(function(achieved, desired))
        if values.shape != achieved.shape[:1]:
            raise SpecError(
                f"{name} was given goals of {list(achieved.shape)} and is to return one value for each row, "
                f"{list(achieved.shape[:1])}; found {list(values.shape)}. Reduce over the goals' own axes only."
            )
        return values

    def _item(self, reward: Any, discount: Any, goal: np.ndarray) -> HindsightInline:
        values = (reward, discount, goal)
        return HindsightInline(*(np.asarray(x, s.dtype) for x, s in zip(values, self._inline, strict=True)))

    def _create_item(self, index: int, inline: HindsightInline, before: HindsightRow, after: HindsightRow) -> None:
        for table, function in self._tables:
            priority = None
            if function is not None:
                goal = {"desired_goal": inline.desired_goal}
                data = Transition(
                    {**before.observation, **goal},
                    before.action,
                    inline.reward,
                    inline.discount,
                    {**after.observation, **goal},
                    before.extras,
                )
                priority = float(function(data))
            self._writer.create_item(table, priority, index - 1, index + 1, inline)

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._steps = []
        self._observation = None
        self._writer.end_episode()

    def close(self) -> None:
        """Confirms everything written and frees the writer. May be called twice."""
        self._writer.close()

    def save(self) -> dict[str, Any]:
        """Returns the state, in mid-episode too (a `Saveable`), with that of the writer."""
        return {
            "writer": self._writer.save(),
            "observation": None if self._observation is None else nests.number_leaves(self._observation),
            "steps": {str(i): nests.number_leaves(step) for i, step in enumerate(self._steps)},
            "num_episodes": self._num_episodes,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, after the replay was restored."""
        writer, observation, steps, episodes = base.read(state, "writer", "observation", "steps", "num_episodes")
        if observation is not None:
            observation = nests.restore_from_numbers(observation, self._spec.observations, "observation")
        restored = [nests.restore_from_numbers(step, self._step_spec, "step") for step in base.read_list(steps)]
        self._writer.restore(writer)
        self._observation = observation
        self._steps = restored
        self._num_episodes = int(episodes)


def check_goals(spec: specs.EnvironmentSpec) -> None:
    """Refuses an environment without goals.

    Raises:
        SpecError: says what is missing.
    """
    found = spec.observations
    if not isinstance(found, dict) or sorted(found) != sorted(GOAL_KEYS):
        names = sorted(found) if isinstance(found, dict) else specs.leaf_names(found)
        raise SpecError(f"Hindsight needs observations that are a dict of {sorted(GOAL_KEYS)}, found {names}.")
    achieved, desired = found["achieved_goal"], found["desired_goal"]
    alike = specs.is_spec(achieved) and specs.is_spec(desired)
    if not alike or (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise SpecError(f"Expected goals of one shape and dtype, found achieved {achieved} and desired {desired}.")
    if not (base.is_scalar(spec.rewards) and base.is_scalar(spec.discounts)):
        raise SpecError(f"Hindsight needs one reward and one discount, found {spec.rewards} and {spec.discounts}.")
