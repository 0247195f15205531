"""Says of a run that is too short for its agent what will not happen in it: learning, or acting by the policy."""

from __future__ import annotations

import math

from agentkit.agents import registry
from agentkit.agents.addons.prior_data import PriorData
from agentkit.agents.common.agent import Experience
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.agents.common.experience_wrappers import DroppingExtras
from agentkit.experiment.config.experiment_config import ExperimentConfig

_PART = 10  # Of a run, which its beginning may take where a setting is proposed.


def warnings_of(experiment: ExperimentConfig, num_actors: int = 1) -> list[str]:
    """Returns lines for the user; none where the run is long enough.

    Args:
        experiment: that is to be run.
        num_actors: actors that share its steps.
    """
    agent, total = experiment.agent, experiment.num_steps
    name = registry.name_of(agent) or "The agent"
    lines = []
    first = None if experiment.data is not None else steps_to_first_update(agent.experience)
    if first is not None and first > total:
        lines.append(
            f"{name} will learn nothing in {total:,} steps: it begins after about {first:,}. Give it more steps, or "
            f"{_setting(agent.experience, total)}."
        )
    random = getattr(agent.config, "num_random_steps", 0) * num_actors
    if random >= total:
        lines.append(
            f"{name} will act at random in all of its {total:,} steps, and by its policy only where it is evaluated: "
            f"the first {random:,} steps are random. Give it more steps, or num_random_steps={_less(total)}."
        )
    return lines


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
