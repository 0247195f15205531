"""Add-ons: functions from an agent to one that learns from other goals or rewards, or from data of others, too."""

from agentkit.agents.addons.gail import with_gail
from agentkit.agents.addons.her import with_her
from agentkit.agents.addons.prior_data import with_prior_data
from agentkit.agents.addons.rnd import with_rnd

__all__ = ["with_gail", "with_her", "with_prior_data", "with_rnd"]
