"""Add-ons: functions from an agent to one with other goals, rewards, scales, data, encoders, episodes or views."""

from agentkit.agents.addons.gail import with_gail
from agentkit.agents.addons.her import with_her
from agentkit.agents.addons.normalization import with_normalization
from agentkit.agents.addons.postprocessing import with_postprocessing
from agentkit.agents.addons.prior_data import with_prior_data
from agentkit.agents.addons.rnd import with_rnd
from agentkit.agents.addons.views import with_views
from agentkit.agents.common import drq
from agentkit.agents.common.drq import with_drq
from agentkit.agents.common.views import View

__all__ = [
    "View",
    "drq",
    "with_drq",
    "with_gail",
    "with_her",
    "with_normalization",
    "with_postprocessing",
    "with_prior_data",
    "with_rnd",
    "with_views",
]
