"""Says of a run that is too short for its agent what will not happen in it: learning, or acting by the policy.

And of one that is too long for its schedules: learning, once the step size is 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from agentkit.agents import registry
from agentkit.agents.addons.prior_data import PriorData
from agentkit.agents.common.agent import Agent, Experience
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.agents.common.experience_wrappers import DroppingExtras
from agentkit.counting import count_of
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.identity import describe_agent
from agentkit.learning import Cosine, Linear, Piecewise

RATE = "learning_rate"
"""The names of all step sizes end so."""

_OF_THE_VALUE = ("npg", "trpo")
"""Agents whose step size is that of their value networks alone: policies go as far as their trust region."""

_PART = 10  # Of a run, which its beginning may take where a setting is proposed.


def warnings_of(experiment: ExperimentConfig, num_actors: int = 1) -> list[str]:
    """Returns lines for the user; none where the run is long enough, and not too long.

    Args:
        experiment: that is to be run.
        num_actors: actors that share its steps.
    """
    said = [
        *acts_at_random(experiment.agent, experiment.num_steps, num_actors),
        *_stops_learning(experiment.agent, experiment.num_steps),
    ]
    if experiment.data is not None:
        return said
    return [*learns_nothing(experiment.agent, experiment.num_steps), *said]


def learns_nothing(agent: Agent[Any], total: int, steps: str = "") -> list[str]:
    """Returns a line where an agent will have too few steps for an update.

    Args:
        agent: for as many environments as there are.
        total: the steps that it will have, of all environments together.
        steps: the words for them, where the run counts others.
    """
    first = steps_to_first_update(agent.experience)
    if first is None or first <= total:
        return []
    return [
        f"{_name(agent)} will learn nothing in {steps or _in_words(total)}: it begins after about {first:,}. Give it "
        f"more steps, or {_setting(agent.experience, total)}."
    ]


def acts_at_random(agent: Agent[Any], total: int, num_actors: int = 1, steps: str = "") -> list[str]:
    """Returns a line where an agent will not act by its policy in so many steps; see `learns_nothing`.

    Args:
        agent: see there.
        total: see there.
        num_actors: that share the steps, and each begin with random ones.
        steps: see there.
    """
    random = getattr(agent.config, "num_random_steps", 0) * num_actors
    if random < total:
        return []
    return [
        f"{_name(agent)} will act at random in all of its {steps or _in_words(total)}, and by its policy only where it "
        f"is evaluated: the first {random:,} steps are random. Give it more steps, or num_random_steps={_less(total)}."
    ]


def _stops_learning(agent: Agent[Any], total: int) -> list[str]:
    config: Any = agent.config
    names = [field.name for field in dataclasses.fields(config)] if dataclasses.is_dataclass(config) else []
    last = learning_ends({name: getattr(config, name) for name in names})
    if last is None or total - last < total / _PART:  # Schedules often end with the last whole batch.
        return []
    if not learns_by_rates(describe_agent(agent, 1)):
        return []
    return [
        f"{_name(agent)} will learn nothing after step {last:,.0f} of {total:,}: by then its {RATE} has fallen to 0. "
        "For more, begin a new run with a longer schedule, by init_from (--init-from) with what this one has learned."
    ]


def learns_by_rates(record: Mapping[str, Any]) -> bool:
    """Returns whether an agent learns nothing where its step sizes are 0, by what `identity.describe_agent` says of it.

    Of an update or an optimiser of the user's own that cannot be said.
    """
    return record["agent"] not in (None, *_OF_THE_VALUE) and "make_update" not in record["agent_parts"]


def learning_ends(settings: Mapping[str, Any]) -> float | None:
    """Returns the step from which on every step size among an agent's settings is 0; None where some never are.

    None, too, where that cannot be said, as of schedules that count updates.
    """
    ends = [_zero_from(value) for name, value in settings.items() if name.endswith(RATE) and value is not None]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _zero_from(rate: Any) -> float | None:
    if isinstance(rate, Linear | Cosine) and rate.by == "steps" and rate.end == 0:
        return rate.duration
    if isinstance(rate, Piecewise) and rate.by == "steps" and rate.boundaries and rate.values[-1] == 0:
        return rate.boundaries[-1]
    return None


def _in_words(total: int) -> str:
    return count_of(total, "step")


def _name(agent: Agent[Any]) -> str:
    return registry.name_of(agent) or "The agent"


def no_update(steps: int, unit: str = "step") -> str:
    """Returns the line that a run without an update ends with."""
    return f"No update was made in {steps:,} {unit}s: the policy is the one that the run began with."


def steps_to_first_update(experience: Experience) -> int | None:
    """Returns after about how many steps, of all environments together, an agent has enough to learn from.

    None where that cannot be said, as of complete episodes.
    """
    if isinstance(experience, Transitions):
        return experience.config.min_replay_size
    if isinstance(experience, Sequences):
        config = experience.config
        return config.sequence_length + (config.min_replay_size - 1) * config.sequence_period
    if isinstance(experience, Segments) and not experience.completes_episodes:
        return experience.batch_plan.batch_size * experience.segment_length
    if isinstance(experience, DroppingExtras | PriorData):
        return steps_to_first_update(experience.experience)
    return None


def _setting(experience: Experience, total: int) -> str:
    """Returns a setting with which the agent would learn in so many steps."""
    if isinstance(experience, DroppingExtras | PriorData):
        return _setting(experience.experience, total)
    if isinstance(experience, Segments):
        return "a shorter segment_length"
    period = experience.config.sequence_period if isinstance(experience, Sequences) else 1
    return f"min_replay_size={_less(total / period)}"


def _less(steps: float) -> int:
    return max(math.floor(steps / _PART), 1)
