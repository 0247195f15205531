"""The test session is stricter than production: warnings are errors, rank promotion raises."""

import os

import hypothesis

# One CPU device, whatever the machine has: results then do not depend on where the tests run.
os.environ["JAX_PLATFORMS"] = "cpu"
# jax reads this when it is first imported; tests that never touch jax stay free of it.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# TensorFlow (with Reverb) prints banners and reserves the accelerator otherwise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("MPLBACKEND", "Agg")
# Ray reads this once in a process, whenever it is first asked; each test then brings its token, or none.
os.environ["RAY_AUTH_MODE"] = "token"
# dm_control picks a renderer when imported; the tests of physics need none.
os.environ.setdefault("MUJOCO_GL", "disabled")

# The same examples each time, and no deadline for one: test machines are busy.
hypothesis.settings.register_profile("agentkit", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("agentkit")
