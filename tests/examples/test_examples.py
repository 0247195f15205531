"""Every example runs as a user runs it, learns what it says, and fits on a page."""

import dataclasses
import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from agentkit import checkpoint, experiment
from agentkit.agents import dqn
from tests import form

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# The last line each prints, and the least number in it that shows learning: a random policy gets about -0.6
# on catch, and misses the temperature by 11 degrees.
PRINTS = {
    "attention_window": (r"after \d+ steps: return (-?[\d.]+) ", 0.9),
    "custom_network": (r"after \d+ steps: return (-?[\d.]+) ", 0.5),
    "dqn_by_hand": (r"\d+ updates: return (-?[\d.]+) ", 0.5),
    "equinox_torso": (r"after \d+ steps: return (-?[\d.]+) ", 0.5),
    "flax_torso": (r"after \d+ steps: return (-?[\d.]+) ", 0.5),
    "hindsight": (r"after \d+ steps: return (-?[\d.]+) ", -5.0),
    "munchausen_dqn": (r"after \d+ steps: return (-?[\d.]+) ", 0.5),
    "new_environment": (r"Mean error after \d+ steps: (-?[\d.]+) degrees", None),
    "planning_by_the_rules": (r"after \d+ steps: won ([\d.]+) of 100 games", 0.85),
    "prioritized_replay_on_reverb": (r"after \d+ steps: return (-?[\d.]+) ", 0.5),
    "reinforce_with_baseline": (r"after \d+ steps: return (-?[\d.]+) ", 0.5),
}


def run(name, *arguments):
    """What the example prints; fails with its traceback if it does not end well within five minutes."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONWARNINGS="default")
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def last_number(name, output):
    found = re.search(PRINTS[name][0], output.strip().splitlines()[-1])
    assert found, output
    return float(found.group(1))


@pytest.mark.both_stacks
def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES} == set(PRINTS)


@pytest.mark.both_stacks
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_fits_on_a_page_and_teaches(path):
    text = path.read_text()
    # A whole algorithm takes more than a changed part, and so do all boxes and the rules of a game.
    most = 110 if path.stem in ("dqn_by_hand", "planning_by_the_rules", "reinforce_with_baseline") else 80
    form.ask_for(len(text.splitlines()) < most, f"{path.name} does not fit on a page of {most} lines.")
    assert text.startswith('"""')
    assert "--num_steps" in text


@pytest.mark.both_stacks
@pytest.mark.full
@pytest.mark.parametrize("name", ["custom_network", "dqn_by_hand", "munchausen_dqn", "reinforce_with_baseline"])
def test_learns_catch(name):
    assert last_number(name, run(name)) >= PRINTS[name][1]


@pytest.mark.full
def test_attention_over_a_window_remembers_what_dqn_does_not():
    """The right answer is worth 1; without memory it is chance, whose mean is 0."""
    output = run("attention_window")
    without = re.search(PRINTS["attention_window"][0], output.splitlines()[0])
    assert without and float(without.group(1)) < 0.6
    assert last_number("attention_window", output) >= PRINTS["attention_window"][1]


@pytest.mark.full
@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_a_torso_of_another_library_learns_catch(library):
    pytest.importorskip(library)
    assert last_number(f"{library}_torso", run(f"{library}_torso")) >= PRINTS[f"{library}_torso"][1]


@pytest.mark.both_stacks
@pytest.mark.full
@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_a_run_with_a_torso_of_another_library_goes_on_from_its_folder_to_the_same_bits(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.syspath_prepend(ROOT / "examples")
    agent = importlib.import_module(f"{library}_torso").make_agent()
    settings = {"hidden_sizes": (8,), "min_replay_size": 20, "batch_size": 8}
    config = dataclasses.replace(agent.config, **settings)
    agent = dqn.make_agent(config, torso=agent.make_networks.torso)

    def plan(name, num_steps):
        return experiment.ExperimentConfig(
            agent, "agentkit:catch", num_steps, evaluation_period=0, run_directory=tmp_path / name
        )

    experiment.run(plan("whole", 90))
    experiment.run(plan("halves", 45))
    assert experiment.read_config(tmp_path / "halves").describe() == plan("halves", 45).describe()
    experiment.resume(tmp_path / "halves", num_steps=90)
    whole, halves = (checkpoint.read_latest(tmp_path / name / "checkpoints").state for name in ("whole", "halves"))
    learned = [state["learner"]["state"] for state in (whole, halves)]
    own = [name for name in learned[0] if "board_torso" in name]
    assert own and learned[0].keys() == learned[1].keys()
    for name, leaf in learned[0].items():
        np.testing.assert_array_equal(leaf, learned[1][name], err_msg=name)
    assert experiment.evaluate(tmp_path / "halves", num_episodes=1)["steps"] == 90


@pytest.mark.full
def test_who_plans_by_the_rules_beats_chance_at_connect_four():
    """Chance wins half of its games against chance; after 20,000 moves a planner wins nearly all."""
    assert last_number("planning_by_the_rules", run("planning_by_the_rules", "--num_steps", "20_000")) >= 0.85


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hindsight_solves_what_dqn_does_not(seed):
    """10 bits: -4 is perfect, -10 is never. A third of the steps is enough with hindsight."""
    output = run("hindsight", "--seed", str(seed))
    without = re.search(r"^DQN after \d+ steps of 10 bits: return (-?[\d.]+) ", output, re.M)
    assert without and float(without[1]) < -9.0
    assert last_number("hindsight", output) >= PRINTS["hindsight"][1]


@pytest.mark.full
@pytest.mark.both_stacks
def test_new_environment_is_controlled():
    assert 0.0 < last_number("new_environment", run("new_environment")) < 2.0


@pytest.mark.full
@pytest.mark.both_stacks
def test_num_steps_is_read():
    output = run("munchausen_dqn", "--num_steps", "700")
    assert "after 700 steps" in output


@pytest.mark.reverb
@pytest.mark.full
def test_prioritized_replay_on_reverb():
    output = run("prioritized_replay_on_reverb")
    assert "sampler Prioritized(exponent=0.6)" in output
    assert last_number("prioritized_replay_on_reverb", output) >= 0.5


@pytest.mark.full
@pytest.mark.both_stacks
@pytest.mark.both_stacks
def test_the_reverb_example_without_reverb_says_what_to_install():
    if importlib.util.find_spec("reverb") is not None:
        output = run("prioritized_replay_on_reverb", "--num_steps", "600", "--replay", "in_process")
        assert "in_process after 600 steps" in output
        return
    command = [sys.executable, str(ROOT / "examples" / "prioritized_replay_on_reverb.py")]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode != 0
    assert "agentkit-rl[reverb]" in ended.stderr
