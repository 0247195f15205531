"""What a launched actor's process is told and what it loads, seen from inside of it."""

import json

import pytest

from agentkit.agents import dqn
from agentkit.experiment import ExperimentConfig, launch
from tests.experiment import reporting
from tests.experiment.launched import REPLAY

pytestmark = [pytest.mark.both_stacks, pytest.mark.full]


def test_an_actor_knows_its_place_and_loads_nothing_that_it_does_not_need(tmp_path):
    config = dqn.Config(hidden_sizes=(16,), min_replay_size=100, updates_per_step=0.1, epsilon_ladder=True)
    experiment = ExperimentConfig(
        reporting.make_agent(config), reporting.make_environment, 500,
        run_directory=tmp_path, evaluation_period=0, replay=REPLAY,
    )  # fmt: skip
    assert launch(experiment, num_actors=2).steps >= 500
    for number in range(2):
        log = (tmp_path / "nodes" / f"actor-{number}.log").read_text()
        place, loaded = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
        assert place == {"index": number, "count": 2}
        assert loaded["num_modules"] > 1_000 and loaded["needless"] == [], loaded
