"""The table of presets: each row is possible for its agent, and the row that fits best is found."""

import dataclasses
import shlex

import pytest

import agentkit
from agentkit.agents import registry
from agentkit.cli.values.fields import parse_settings
from agentkit.cli.words.parser import parse
from agentkit.envs.bandit import Bandit
from agentkit.errors import UnknownNameError
from agentkit.experiment.config.preset_table import PRESETS, Falling, Preset
from agentkit.experiment.config.presets import find, summary


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
    known = ("atari", "gymnasium", "gymnax", "envpool", "dm_control", "dm_control_pixels", "bsuite", "jaxmarl", "team")
    assert all(name.split(":")[0] in known for name in preset.environments)


@pytest.mark.parametrize("preset", PRESETS, ids=label)
def test_every_row_is_found(preset):
    for pattern in preset.environments:
        assert find(preset.agent, pattern.replace("*", "5")) is preset


PAGES = [f"docs/results/{name}.md" for name in ("mujoco", "cartpole", "games", "several_agents")]
OURS = [preset for preset in PRESETS if preset.source in PAGES]


@pytest.mark.parametrize("preset", OURS, ids=label)
def test_presets_of_ours_are_the_commands_of_their_pages(preset, request):
    """So their returns are the page's: the settings and the number of environments are the same, to the last one."""
    page = (request.config.rootpath / preset.source).read_text()
    commands = [line for line in page.splitlines() if line.startswith(f"agentkit train {preset.agent} ")]
    # Those that name a preset say nothing about its settings.
    commands = [line for line in commands if "--preset auto" not in line]
    command = next((line for line in commands if f"--env {preset.environments[0]} " in line), commands[0])
    words = parse(shlex.split(command.replace("ENVIRONMENT", "CartPole").replace("SEED", "0"))[1:])
    config_class = registry.config_class(preset.agent)
    theirs = config_class(**parse_settings(words.set or [], config_class, preset.agent))
    ours = config_class(**preset.settings_for(words.steps))
    if preset.agent == "ppo" and "cartpole" in preset.source:
        # The default of then, which the page names in words.
        assert "| ppo | 500, 500, 500, with segments of 128 rows |" in page
        theirs = dataclasses.replace(theirs, segment_length=128)
    assert ours == theirs
    assert preset.num_envs == words.num_envs


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
    monkeypatch.setattr("agentkit.experiment.config.presets.PRESETS", rows)
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
