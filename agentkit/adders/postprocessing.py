"""The postprocessing adder: a function of yours between an episode and its items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, final

import dm_env
import numpy as np
import tree

from agentkit import core, nests, specs
from agentkit.adders import base
from agentkit.adders.columns import with_columns
from agentkit.errors import NonFiniteError, SpecError
from agentkit.types import FIRST, LAST, MID, Nest


class Trajectory(NamedTuple):
    """Holds T steps of an episode: all of them, or those that are in a segment.

    Attributes:
        observation: o_0 to o_T, nest of ``[T + 1, ...]``.
        action: a_0 to a_{T-1}, nest of ``[T, ...]``.
        reward: r_1 to r_T, nest of ``[T, ...]``.
        discount: d_1 to d_T, the environment's, nest of ``[T, ...]``: the last is 0 after a termination, and 1 where
            something would have followed: after a truncation, or where the segment ends.
        extras: what the policy emitted with each action, and the columns, nest of ``[T, ...]``.
    """

    observation: Nest
    action: Nest
    reward: Nest
    discount: Nest
    extras: Nest

    def with_columns(self, **columns: Any) -> Trajectory:
        """Returns the steps with more columns ``[T, ...]`` among the extras, or others in their place."""
        return self._replace(extras=with_columns(self.extras, columns))


Postprocess = Callable[[Trajectory], Trajectory | None]
"""Returns an episode as it is to be learned from, of as many steps or fewer or more; None leaves it out.

Of a segment it returns as many steps as it is given.
"""


class _Step(NamedTuple):
    observation: Nest
    action: Nest
    reward: Nest
    discount: Nest
    extras: Nest


@final
class PostprocessingAdder(core.Adder):
    """Shows each whole episode to a function, and adds what that returns.

    Nothing is added before LAST, so an episode that is not finished, or has no end, is not learned from.
    """

    def __init__(
        self,
        adder: core.Adder,
        spec: specs.EnvironmentSpec,
        postprocess: Postprocess,
        extras_spec: Nest = (),
        columns: Mapping[str, specs.Array] = MappingProxyType({}),
    ):
        """Makes a postprocessing adder.

        Args:
            adder: of one environment, which gets the episodes; it is closed with this.
            spec: of the environment.
            postprocess: see `Postprocess`. It gets arrays of its own, which it may change.
            extras_spec: nest of array specs of the extras given to `add`.
            columns: specs of those that `postprocess` adds to the extras, by name; `adder` takes them, too.
        """
        self._adder = adder
        self._spec = spec
        self._postprocess = postprocess
        self._step_spec = _Step(spec.observations, spec.actions, spec.rewards, spec.discounts, extras_spec)
        self._stored_spec = self._step_spec._replace(extras=with_columns(extras_spec, columns))
        self._casts, self._stored_casts = (
            [base.make_cast(each, name) for name, each in step._asdict().items()]
            for step in (self._step_spec, self._stored_spec)
        )
        self._steps: list[_Step] = []
        self._observation: Nest = None  # the newest, not yet in a step; None between episodes

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        base.check_first(timestep, self._spec, self._observation is not None)
        self._observation = nests.copy_nest(timestep.observation)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Keeps a step; on LAST adds the episode as `postprocess` returns it."""
        base.check_next(next_timestep, self._observation is not None)
        if not self._steps:
            base.check_extras(extras, self._step_spec.extras)
        step = (self._observation, action, next_timestep.reward, next_timestep.discount, extras)
        # Copies, of arrays that the environment or the policy may use again.
        self._steps.append(_Step(*(nests.copy_nest(cast(x)) for cast, x in zip(self._casts, step, strict=True))))
        self._observation = nests.copy_nest(next_timestep.observation)
        if next_timestep.last():
            found = self._postprocess(self._trajectory())
            given = self._steps, self._observation
            self._steps, self._observation = [], None
            if found is not None:
                self._add_episode(found, given)

    def _trajectory(self) -> Trajectory:
        steps = tree.map_structure(lambda *rows: np.stack(rows), *self._steps)
        observation = tree.map_structure(
            lambda rows, last: np.concatenate([rows, np.asarray(last, rows.dtype)[None]]),
            steps.observation,
            self._observation,
        )
        return Trajectory(observation, *steps[1:])

    def _add_episode(self, found: Trajectory, given: Nest) -> None:
        """Checks an episode, made of the steps and the last observation that are `given`, and adds it step by step."""
        observation, *others = check_lengths(found, self._stored_spec)
        check_finite(found, given)
        length = len(tree.flatten(others[1])[0])

        def row(nest: Nest, t: int, which: int) -> Nest:
            return self._stored_casts[which](tree.map_structure(lambda leaf: leaf[t], nest))

        self._adder.add_first(dm_env.TimeStep(FIRST, None, None, row(observation, 0, 0)))
        for t in range(length):
            action, reward, discount, extras = (row(nest, t, 1 + i) for i, nest in enumerate(others))
            kind = LAST if t == length - 1 else MID
            self._adder.add(action, dm_env.TimeStep(kind, reward, discount, row(observation, t + 1, 0)), extras)

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._steps, self._observation = [], None
        self._adder.reset()

    def close(self) -> None:
        """Closes the adder."""
        self._adder.close()

    def save(self) -> dict[str, Any]:
        """Returns the steps of the unfinished episode and the adder's state (a `Saveable`)."""
        return {
            "adder": self._adder.save(),  # type: ignore[attr-defined]
            "observation": None if self._observation is None else nests.number_leaves(self._observation),
            "steps": {str(i): nests.number_leaves(step) for i, step in enumerate(self._steps)},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, after the replay was restored."""
        adder, observation, steps = base.read(state, "adder", "observation", "steps")
        if observation is not None:
            observation = nests.restore_from_numbers(observation, self._spec.observations, "observation")
        restored = [nests.restore_from_numbers(step, self._step_spec, "step") for step in base.read_list(steps)]
        self._adder.restore(adder)  # type: ignore[attr-defined]
        self._observation, self._steps = observation, restored


def check_finite(found: Trajectory, given: Nest) -> None:
    """Refuses numbers that a postprocessing function has made NaN or infinite, but for those among the extras.

    Args:
        found: what it returned.
        given: what it was made of. Where that is not finite, the environment's steps were, and the run goes on with it.

    Raises:
        NonFiniteError: says which part has them.
    """
    bad = [name for name in found._fields[:-1] if not _is_finite(getattr(found, name))]
    if bad and _is_finite(given):
        raise NonFiniteError(
            f"postprocess: expected finite numbers, found nan or inf in the {bad[0]} of what it returned. Correct it, "
            "or return None to leave an episode out."
        )


def _is_finite(nest: Nest) -> bool:
    leaves = (np.asarray(leaf) for leaf in tree.flatten(nest))
    return all(leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all()) for leaf in leaves)


def check_lengths(found: Any, spec: Any) -> Trajectory:
    """Returns what a postprocessing function returned, if its parts have steps that go together.

    Raises:
        SpecError: says which part, what was expected of it and what was found.
    """
    if not isinstance(found, Trajectory):
        raise SpecError(
            f"postprocess returned a {type(found).__name__}. Expected the Trajectory of an episode, or None to leave "
            "it out. Return trajectory._replace(...)."
        )
    rewards = tree.flatten(found.reward)
    length = len(rewards[0]) if rewards and np.ndim(rewards[0]) else 0
    if length == 0:
        raise SpecError("postprocess returned an episode without steps. Return None to leave an episode out.")
    for name, nest, expected in zip(found._fields, found, spec, strict=True):
        rows = length + 1 if name == "observation" else length
        try:
            tree.assert_same_structure(expected, nest)
        except (ValueError, TypeError) as error:
            raise SpecError(
                f"postprocess changed the structure of {name}: expected leaves {specs.leaf_names(expected)}, found "
                f"{specs.leaf_names(nest)}."
                + (" Declare what it adds: with_postprocessing(..., columns={name: 0.0})." if name == "extras" else "")
            ) from error
        for leaf_name, leaf in zip(specs.leaf_names(nest), tree.flatten(nest), strict=True):
            if np.ndim(leaf) == 0 or len(leaf) != rows:
                raise SpecError(
                    f"postprocess returned {length} rewards and {name} {leaf_name!r} of shape {list(np.shape(leaf))}; "
                    f"expected {rows} rows."
                )
    return found
