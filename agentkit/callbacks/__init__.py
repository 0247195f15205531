"""Callbacks: react to what happens in a run, and end it.

Give them to `agentkit.run(experiment, callbacks=[...])`, `launch`, `run_offline`, `iterate` or `resume`. Ready-made
are `keep_best`, `stop_at`, `stop_when_flat`, `info_metrics`, `curriculum` and `prune`; one of your own is a subclass
of `Callback`. See docs/callbacks.md.
"""

from agentkit.callbacks.base import EVENTS, Callback, Episode, RunView, Step, Stop, check_callbacks
from agentkit.callbacks.best import keep_best, read_best
from agentkit.callbacks.curricula import curriculum
from agentkit.callbacks.metrics import info_metrics
from agentkit.callbacks.pruning import prune
from agentkit.callbacks.stopping import stop_at, stop_when_flat

__all__ = [
    "EVENTS",
    "Callback",
    "Episode",
    "RunView",
    "Step",
    "Stop",
    "check_callbacks",
    "curriculum",
    "info_metrics",
    "keep_best",
    "prune",
    "read_best",
    "stop_at",
    "stop_when_flat",
]
