"""Add-ons around each other, in one run: normalised observations within views, with columns beside them."""

import pathlib

import pytest

import agentkit
from agentkit.agents import sac
from agentkit.agents.addons import View, with_normalization, with_views
from agentkit.experiment import Result, evaluate
from tests.experiment.resumed import check_resumes

CONFIG = sac.Config(hidden_sizes=(8,), batch_size=8, min_replay_size=20, num_random_steps=20)
VIEWS = {"window": View("observation", "-2:0"), "last": View("action", -1)}


@pytest.mark.full
def test_a_run_resumes_equal_and_is_evaluated_from_its_folder(tmp_path: pathlib.Path) -> None:
    agent = with_views(with_normalization(sac.make_agent(CONFIG), rewards=True), VIEWS)

    def train(name: str, num_steps: int, **resume: bool) -> Result:
        return agentkit.run(
            agentkit.ExperimentConfig(
                agent,
                "agentkit:point_mass",
                num_steps,
                run_directory=tmp_path / name,
                evaluation_period=0,
                columns=("t",),
            ),
            **resume,
        )

    check_resumes(train, tmp_path, num_steps=80)
    assert evaluate(tmp_path / "parts", num_episodes=2) == evaluate(tmp_path / "whole", num_episodes=2)
