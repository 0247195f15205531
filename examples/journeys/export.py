"""Exports a trained policy as StableHLO and ONNX, and acts with both: export.py RUN."""

import pathlib
import sys

import jax.export
import numpy as np
import onnxruntime

import agentkit

policy = agentkit.load(sys.argv[1])
policy.export("policy.stablehlo")
policy.export("policy.onnx")
batch = {"observation": np.zeros((8, *policy.observation_spec.shape), np.float32)}
print(jax.export.deserialize(bytearray(pathlib.Path("policy.stablehlo").read_bytes())).call(batch)["action"])
print(onnxruntime.InferenceSession("policy.onnx").run(["action"], batch)[0])
