"""Add-ons: functions from an agent to an agent that learns from other goals, or from other rewards."""

from agentkit.agents.addons.gail import with_gail
from agentkit.agents.addons.her import with_her
from agentkit.agents.addons.rnd import with_rnd

__all__ = ["with_gail", "with_her", "with_rnd"]
