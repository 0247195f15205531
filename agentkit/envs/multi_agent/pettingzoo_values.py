"""Takes what PettingZoo's environments return: dictionaries by agent, of observations, rewards, ends and infos.

What is nearly right ends in one line that says what was found and what was expected; the adapter adds environment,
step and agent. PettingZoo itself is not needed here.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agentkit import specs
from agentkit.envs.gymnasium_values import count_values, find_refused_argument, take_step
from agentkit.errors import SpecError

Outcome = tuple[Any, float, bool, bool, Mapping[str, Any]]
"""An agent's observation, its reward, whether it terminated and was truncated, and its info."""


class Parts(NamedTuple):
    """Holds what a `ParallelEnv` returned, each part by agent; those of a reset are the first and the last."""

    observations: Mapping[Any, Any]
    rewards: Mapping[Any, Any]
    terminations: Mapping[Any, Any]
    truncations: Mapping[Any, Any]
    infos: Mapping[Any, Any]

    def of(self, own_id: Any, *, acted: bool) -> Outcome:
        """Returns one agent's outcome; whoever has acted must have a reward, a termination and a truncation.

        Raises:
            SpecError: it lacks one, or they are not what `gymnasium_values.take_step` takes.
        """
        for name in ("rewards", "terminations", "truncations") if acted else ():
            if own_id not in (found := getattr(self, name)):
                raise SpecError(
                    f"{name}: expected one of each agent that has acted, also of one that leaves; found "
                    f"{specs.brief(found)}."
                )
        return take_step(
            (
                self.observations.get(own_id),
                self.rewards.get(own_id, 0.0),
                self.terminations.get(own_id, False),
                self.truncations.get(own_id, False),
                self.infos.get(own_id),
            )
        )

    def tell_end(self, own_id: Any) -> bool:
        """Returns whether one agent is said to have ended, now or before."""
        return any(np.any(ends.get(own_id)) for ends in (self.terminations, self.truncations))


def take_parallel_reset(found: Any) -> Parts:
    """Returns the observations and the infos of a `ParallelEnv`'s reset.

    Raises:
        SpecError: it returned something else than these two.
    """
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise SpecError(
            f"reset() returned {count_values(found)}; expected two dictionaries by agent, (observations, infos). "
            "Return observations, {agent: {} for agent in self.agents}."
        )
    observations, infos = found
    return Parts(
        take_by_agent(observations, "observations"), {}, {}, {}, take_by_agent({} if infos is None else infos, "infos")
    )


def take_parallel_step(found: Any) -> Parts:
    """Returns what a `ParallelEnv`'s step did.

    Raises:
        SpecError: it returned something else than five dictionaries.
    """
    if not isinstance(found, tuple | list) or len(found) != 5:
        raise SpecError(
            f"step() returned {count_values(found)}; expected five dictionaries by agent: {', '.join(Parts._fields)}. "
            "PettingZoo's old four had one of dones for both ends: say which it was (truncated for a time limit)."
        )
    *others, infos = found
    parts = (*others, {} if infos is None else infos)
    return Parts(*(take_by_agent(part, name) for name, part in zip(Parts._fields, parts, strict=True)))


def take_last(found: Any) -> Outcome:
    """Returns what an `AECEnv`'s ``last()`` says of the agent whose turn it is.

    Raises:
        SpecError: it returned something else, see `gymnasium_values.take_step`.
    """
    if not isinstance(found, tuple | list) or len(found) != 5:
        raise SpecError(
            f"last() returned {count_values(found)}; expected five: observation, reward, terminated, truncated, info."
        )
    return take_step(found)


def take_by_agent(found: Any, name: str) -> Mapping[Any, Any]:
    """Returns what it is given, a dictionary by agent.

    Raises:
        SpecError: it is something else.
    """
    if not isinstance(found, Mapping):
        raise SpecError(f"{name}: expected a dictionary by agent, found {specs.brief(found)}.")
    return found


def explain(error: Exception, environment: Any) -> SpecError | None:
    """Returns in one line why PettingZoo could not call an environment, or use what it keeps; None for other errors.

    An `AECEnv` keeps rewards, ends and infos by agent, which PettingZoo's own methods add up and hand out.
    """
    argument = find_refused_argument(error)
    if argument is not None:
        return SpecError(f"reset() takes no {argument!r}; expected def reset(self, seed=None, options=None).")
    where = traceback.extract_tb(error.__traceback__)[-1]
    if "/pettingzoo/utils/" not in where.filename.replace("\\", "/"):
        return None
    while hasattr(environment, "aec_env"):  # Turned into a parallel one.
        environment = environment.aec_env
    for name in ("_cumulative_rewards", "terminations", "truncations", "infos", "rewards"):
        kept = getattr(environment, name, None)
        if not isinstance(kept, Mapping):
            return SpecError(f"{name}: expected a dictionary by agent, found {specs.brief(kept)}. Set it in reset().")
        if not set(environment.agents) <= kept.keys():
            return SpecError(f"{name}: expected one of each of {environment.agents}, found {specs.brief(kept)}.")
    if where.name != "_accumulate_rewards":
        return None
    return SpecError(
        f"rewards: expected one number of each agent, found {specs.brief(list(environment.rewards.values()))}."
    )
