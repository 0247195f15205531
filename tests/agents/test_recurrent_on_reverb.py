"""The agents with a memory on a Reverb server: states travel with the steps, and they learn there as in process."""

from typing import Any

import pytest

pytest.importorskip("reverb")

from agentkit import networks as nets
from agentkit.agents import impala, r2d2, recurrent_sac
from agentkit.experiment import ExperimentConfig, launch, run

# TensorFlow Probability, which rlax imports, where TensorFlow is there already: it compares versions with distutils.
pytestmark = [
    pytest.mark.reverb,
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
]


@pytest.mark.full
def test_r2d2_learns_from_a_server() -> None:
    settings: dict[str, Any] = {
        "core_size": 8,
        "batch_size": 8,
        "sequence_length": 8,
        "sequence_period": 4,
        "burn_in": 2,
    }
    agent = r2d2.make_agent(r2d2.Config(**settings, min_replay_size=20, updates_per_step=0.5))
    result = run(ExperimentConfig(agent, "agentkit:catch", num_steps=300, evaluation_period=0, replay="reverb"))
    assert result.steps == 300 and result.updates >= 100


@pytest.mark.full
def test_recurrent_sac_learns_from_a_server_with_an_attention_memory() -> None:
    """Whose stored state is a nest of rows and a count."""
    settings: dict[str, Any] = {
        "hidden_sizes": (8,),
        "core_size": 8,
        "core": nets.GTrXL(memory_length=3),
        "batch_size": 8,
        "sequence_length": 8,
        "sequence_period": 4,
        "burn_in": 2,
    }
    config = recurrent_sac.Config(**settings, min_replay_size=20, num_random_steps=50, updates_per_step=0.5)
    agent = recurrent_sac.make_agent(config)
    result = run(ExperimentConfig(agent, "agentkit:point_mass", num_steps=300, evaluation_period=0, replay="reverb"))
    assert result.steps == 300 and result.updates >= 100


@pytest.mark.full
def test_impala_learns_from_actors_that_run_ahead() -> None:
    """Launched: as many segments are learned from as the actors' steps make, but for those that wait at the end."""
    config = impala.Config(hidden_sizes=(32,), core_size=32, learning_rate=1e-3, discount=0.95, queue_size=16)
    experiment = ExperimentConfig(
        impala.make_agent(config), "agentkit:memory_chain", 18_000, num_envs=4, replay="reverb", evaluation_period=3_000
    )
    result = launch(experiment, num_actors=2, num_evaluators=1)
    rows = result.steps * 7 / 6  # Episodes of 6 steps and a row for their end.
    assert 0.8 < result.updates / (rows / (4 * 20)) < 1.05
    # The best: data are older or newer from run to run, and what was learned can be lost again for a while.
    assert max(evaluation["episode_return"] for evaluation in result.evaluations) > 0.9
