"""Acts with a trained policy in a process that loads no simulator: deploy.py RUN."""

import sys

import numpy as np

import agentkit

agentkit.load(sys.argv[1]).save("policy.npz")  # Where it was trained; all of the rest happens elsewhere.

policy = agentkit.load("policy.npz")
state = None  # Begins an episode.
for observation in np.zeros((5, *policy.observation_spec.shape)):  # Yours come from a sensor.
    action, state = policy(observation, state)
    print(action)
