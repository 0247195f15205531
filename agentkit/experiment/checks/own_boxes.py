"""Refuses what an actor or a learner of a user's own cannot do, before anything starts."""

from __future__ import annotations

from typing import Any

from agentkit.agents.common.agent import Agent, no_update
from agentkit.errors import ConfigError
from agentkit.experiment.config import identity


def check_own_boxes(experiment: Any) -> None:
    """Refuses settings of an experiment that are of no use to its agent's own actor or learner.

    Args:
        experiment: an `ExperimentConfig`.

    Raises:
        ConfigError: it names the setting.
    """
    if experiment.agent.make_actor is not None and experiment.ready is not None:
        raise ConfigError(
            f"ready={experiment.ready} (--ready): the agent's make_actor makes an actor of all environments together, "
            "and none of those that are ready. Leave ready out."
        )
    if experiment.agent.make_learner is None:
        return
    _refuse_unused_update(experiment.agent)
    if experiment.devices is not None:
        raise ConfigError(
            f"devices={experiment.devices} (--devices): the agent's make_learner makes a learner that chooses its own "
            "devices. Leave devices out."
        )
    if experiment.init_from is not None:
        raise ConfigError(
            "init_from (--init-from): the agent's make_learner makes a learner whose state agentkit cannot read. Leave "
            "it out, and let make_learner read what it begins with."
        )


def _refuse_unused_update(agent: Agent) -> None:
    """Refuses an update that somebody gave, to an agent whose learner is none of it; its own is there as it came."""
    update = agent.make_update
    if update is no_update or "make_update" not in identity.describe_agent(agent, 1)["agent_parts"]:
        return
    name = f"{getattr(update, '__module__', '')}.{getattr(update, '__qualname__', type(update).__qualname__)}"
    raise ConfigError(
        f"make_update: found {name}, such as an add-on puts around an update or a make_loss is of, and a make_learner, "
        "which learns without it. Leave one of the two out."
    )
