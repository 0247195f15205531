"""Films a trained policy: video.py RUN."""

import sys

import agentkit
from agentkit.wrappers.film import Film

agentkit.evaluate(sys.argv[1], 1, "run.gif")
agentkit.evaluate(sys.argv[1], 1, Film("run.mp4", num_steps=100, frames_per_second=30, size=240))
