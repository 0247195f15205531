"""What agents of teams do as any agent does: on Reverb, in an export, and from a run folder."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import agentkit
from agentkit import specs
from agentkit.agents import registry
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.policies.export.numpy_policy import Policy as NumpyPolicy
from tests.agents.teams import make_hints
from tests.agents.test_action_masks import small
from tests.agents.test_qmix import observations_of
from tests.experiment.deploy.policies import policy_of

AGENTS = [name for name in registry.names() if "team" in registry.about(name).actions]


@pytest.mark.full
@pytest.mark.parametrize("format", ["npz", "onnx", "stablehlo"])
@pytest.mark.parametrize("name", AGENTS)
def test_a_policy_is_exported_with_its_masks_and_ends(name: str, format: str, tmp_path: pathlib.Path) -> None:
    """Whatever the format, the writer compares what it wrote with the policy itself."""
    if format == "onnx":
        pytest.importorskip("onnx")
    policy = policy_of(name, "hints:three", hidden_sizes=(8,))
    path = tmp_path / f"policy.{format}"
    policy.export(path, "numpy" if format == "npz" else format)
    if format != "npz":
        return
    reader = NumpyPolicy(path)
    seen = observations_of(specs.make_environment_spec(make_hints(0)), 16)
    seen["agents"]["cy"]["action_mask"][:, 1] = 0
    named = dict(zip(reader.description["observations"], jax.tree.leaves(seen), strict=True))
    expected, found = policy(seen)[0], reader(named)[0]
    assert len(found) == 3 and np.all(expected["cy"] != 1)
    for one, other in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.reverb
@pytest.mark.full
@pytest.mark.parametrize("name", AGENTS)
def test_it_learns_from_reverb(name: str) -> None:
    pytest.importorskip("reverb")
    result = run(ExperimentConfig(small(name), make_hints, num_steps=120, replay="reverb", evaluation_period=60))
    assert result.updates > 0 and len(result.evaluations) >= 2


@pytest.mark.full
def test_a_run_by_name_is_resumed_judged_and_loaded(tmp_path: pathlib.Path) -> None:
    settings: dict[str, Any] = {"min_replay_size": 20, "batch_size": 8, "hidden_sizes": (8,), "updates_per_step": 0.5}
    folder = tmp_path / "run"
    agentkit.train("qmix", "team:agentkit:two_step_game", 60, run_directory=folder, progress=False, **settings)
    assert agentkit.resume(folder, num_steps=90).steps == 90
    environment = agentkit.envs.make("team:agentkit:two_step_game")
    action = agentkit.load(folder).select_action(environment.reset().observation)
    for name, spec in environment.action_spec().items():
        spec.validate(action[name])
