"""The agents of one family on a Reverb server: they learn at the pace asked for, and go on after a save."""

import pathlib
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

MIN_SIZE = 50
SMALL = {"hidden_sizes": (8,), "batch_size": 8, "min_replay_size": MIN_SIZE, "replay_size": 1_000}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ddpg", {"noise_correlation": 0.85}),
        ("td3", {"updates_per_call": 4}),
        ("d4pg", {"n_step": 1, "vmin": -15.0, "vmax": 0.0, "prioritized": True}),
        ("mpo", {"n_step": 1, "num_samples": 4}),
        ("redq", {"updates_per_step": 1.0, "updates_per_call": 2, "policy_delay": 2, "num_critics": 3}),
        ("droq", {"updates_per_step": 1.0, "updates_per_call": 2, "policy_delay": 2, "prioritized": True}),
    ],
)
def test_it_runs_and_goes_on_after_a_save(name: str, settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    def experiment(num_steps: int) -> ExperimentConfig:
        return ExperimentConfig(
            registry.make(name, {**SMALL, **settings}),
            "agentkit:point_mass",
            num_steps=num_steps,
            replay="reverb",
            run_directory=tmp_path / "run",
            evaluation_period=0,
            checkpoint_period=100,
        )

    first = run(experiment(200))
    assert first.steps == 200 and first.updates == pytest.approx(200 - MIN_SIZE, rel=0.1)
    second = run(experiment(300), resume=True)
    assert second.steps == 300 and second.updates == pytest.approx(300 - MIN_SIZE, rel=0.1)
