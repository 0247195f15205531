"""The value-based agents on a Reverb server: they learn there as in process."""

from typing import Any

import pytest

pytest.importorskip("reverb")

from agentkit.agents import registry
from agentkit.experiment import ExperimentConfig, run

# TensorFlow Probability, which rlax imports, where TensorFlow is there already: it compares versions with distutils.
pytestmark = [
    pytest.mark.reverb,
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
]


@pytest.mark.full
@pytest.mark.parametrize("name", ["c51", "iqn", "munchausen_dqn", "qr_dqn", "rainbow"])
def test_it_learns_from_a_server(name: str) -> None:
    settings: dict[str, Any] = {"hidden_sizes": (16,), "batch_size": 8, "min_replay_size": 50, "replay_size": 1_000}
    agent = registry.make(name, settings | {"updates_per_step": 1.0})
    result = run(ExperimentConfig(agent, "agentkit:catch", num_steps=200, evaluation_period=0, replay="reverb"))
    assert result.steps == 200 and result.updates >= 100
