"""Add-ons: functions from an agent to one that learns from other goals, from other rewards, or from images."""

from agentkit.agents.addons.gail import with_gail
from agentkit.agents.addons.her import with_her
from agentkit.agents.addons.rnd import with_rnd
from agentkit.agents.common import drq
from agentkit.agents.common.drq import with_drq

__all__ = ["drq", "with_drq", "with_gail", "with_her", "with_rnd"]
