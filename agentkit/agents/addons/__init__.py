"""Add-ons: functions from an agent to an agent that learns from other goals or rewards, or on a common scale."""

from agentkit.agents.addons.gail import with_gail
from agentkit.agents.addons.her import with_her
from agentkit.agents.addons.normalization import with_normalization
from agentkit.agents.addons.rnd import with_rnd

__all__ = ["with_gail", "with_her", "with_normalization", "with_rnd"]
