"""Refuses what an actor or a learner of a user's own cannot do, before anything starts."""

from __future__ import annotations

from typing import Any

from agentkit.errors import ConfigError


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
