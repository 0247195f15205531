"""Add-ons: functions from an agent to an agent that learns from other goals or rewards, or sees its past."""

from agentkit.agents.addons.gail import with_gail
from agentkit.agents.addons.her import with_her
from agentkit.agents.addons.rnd import with_rnd
from agentkit.agents.addons.views import with_views
from agentkit.agents.common.views import View

__all__ = ["View", "with_gail", "with_her", "with_rnd", "with_views"]
