"""The table of presets: each row is possible for its agent, and the row that fits best is found."""

import dataclasses

import pytest

import agentkit
from agentkit.agents import registry
from agentkit.envs.bandit import Bandit
from agentkit.errors import UnknownNameError
from agentkit.experiment.preset_table import PRESETS, Falling, Preset
from agentkit.experiment.presets import find, summary

pytestmark = pytest.mark.one_stack


def label(preset):
    return f"{preset.agent}-{preset.environments[0]}"


@pytest.mark.parametrize("preset", PRESETS, ids=label)
def test_every_row_is_possible_and_says_its_source(preset):
    settings = preset.settings_for(100_000)
    agent = registry.make(preset.agent, settings)  # Refuses what is out of range, or is no setting.
    experiment = agentkit.ExperimentConfig(agent, "agentkit:catch", 1, num_envs=preset.num_envs)
    plan = experiment.agent.batch_plan
    if "num_minibatches" in {field.name for field in dataclasses.fields(agent.config)}:
        rows = plan.batch_size * experiment.agent.experience.segment_length
        assert rows % agent.config.num_minibatches == 0
    assert preset.source.startswith(("docs/results/", "RL Baselines3 Zoo", "CleanRL", "github.com/"))
    assert all(name.split(":")[0] in ("gymnasium", "envpool", "dm_control", "bsuite") for name in preset.environments)


@pytest.mark.parametrize("preset", PRESETS, ids=label)
def test_every_row_is_found(preset):
    for pattern in preset.environments:
        assert find(preset.agent, pattern.replace("*", "5")) is preset


def test_sources_of_ours_are_pages_that_name_the_agent(request):
    for preset in PRESETS:
        if preset.source.startswith("docs/"):
            assert f" {preset.agent} " in (request.config.rootpath / preset.source).read_text().replace("-", " ")


def test_lookups(monkeypatch):
    assert find("ppo", "gymnasium:HalfCheetah-v5").settings["initial_std"] == 0.6
    assert find("ppo", "envpool:Ant-v4") is find("ppo", "gymnasium:Hopper-v5")
    assert find("ppo", "agentkit:catch") is None
    assert find("sac", "gymnasium:CartPole-v1") is None
    assert find("ppo", Bandit) is None
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        find("pppo", "agentkit:catch")
    rows = (
        Preset("ppo", ("mine:A-v*",), "x", 1),
        Preset("ppo", ("mine:A-v2",), "x", 2),
        Preset("ppo", ("mine:*",), "x", 3),
    )
    monkeypatch.setattr("agentkit.experiment.presets.PRESETS", rows)
    steps = [find("ppo", f"mine:{name}").num_steps for name in ("A-v1", "A-v2", "B-v1")]
    assert steps == [1, 2, 3]  # The very name goes before the family, the family before all.


def test_an_instance_of_gymnasiums_has_its_names_preset():
    gymnasium = pytest.importorskip("gymnasium")
    assert find("dqn", gymnasium.make("CartPole-v1")) is find("dqn", "gymnasium:CartPole-v1")


def test_what_falls_does_so_over_the_whole_run():
    preset = Preset("ppo", ("mine:A",), "a page", None, {"learning_rate": Falling(1e-3), "discount": 0.9}, num_envs=4)
    assert preset.settings_for(500)["learning_rate"] == agentkit.learning.Linear(1e-3, 0.0, 500)
    assert summary(preset, 500) == (
        "learning_rate=Linear(start=0.001, end=0.0, duration=500, by='steps'), discount=0.9, num_envs=4 (a page)"
    )
