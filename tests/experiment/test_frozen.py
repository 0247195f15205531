"""Policies of other runs that play and learn nothing: which are read, and from where."""

import dataclasses
import importlib
import shutil
import sys

import pytest

import agentkit
from agentkit.agents import dqn
from agentkit.envs.multi_agent.tic_tac_toe import TicTacToe
from agentkit.errors import ConfigError
from agentkit.experiment import LaunchConfig
from agentkit.experiment.launching.multi_agent import prepare_multi_agent
from agentkit.experiment.multi_agent.build import check_policies
from agentkit.experiment.multi_agent.config import multi_agent_from_record
from agentkit.experiment.multi_agent.loading import load_player
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from tests.experiment.test_multi_agent import DQN, assert_equal, config, saved

WHO = {"first": "learner", "second": "old"}


def against(folder, frozen, num_steps=20, **settings):
    return config(folder, {"learner": DQN, "old": frozen}, WHO, num_steps=num_steps, **settings)


def test_only_the_policies_that_play_are_read(tmp_path):
    """The older run is away: it is asked for only where its policy is to play."""
    agentkit.run(config(tmp_path / "old", policy_of="each", num_steps=20))
    run = tmp_path / "new"
    agentkit.run(against(run, agentkit.Frozen(tmp_path / "old", "second")))
    shutil.rmtree(tmp_path / "old")
    for file in run.glob("frozen-*"):
        file.unlink()
    with pytest.raises(ConfigError, match="old"):
        agentkit.evaluate_multi_agent(run, 1)
    for opponent in ("random", agentkit.Frozen(run, "learner")):
        assert agentkit.evaluate_multi_agent(run, 1, opponents={"second": opponent})["steps"] == 20


def test_a_run_goes_on_against_the_policy_that_it_began_with(tmp_path):
    """The older run has learned more meanwhile, and is somewhere else; runs of earlier versions have kept nothing."""
    old, whole, parts = tmp_path / "old", tmp_path / "whole", tmp_path / "parts"
    agentkit.run(config(old, policy_of="each", num_steps=40))
    agentkit.run(against(whole, agentkit.Frozen(old, "second"), 48))
    agentkit.run(against(parts, agentkit.Frozen(old, "second"), 40))
    agentkit.resume(old, num_steps=80)
    old.rename(tmp_path / "moved")
    agentkit.resume(parts, num_steps=48)
    for name in ("learner", "actors", "loop"):
        assert_equal(saved(whole)[name], saved(parts)[name])
    (tmp_path / "moved").rename(old)
    (parts / "frozen-old.npz").unlink()
    with pytest.warns(UserWarning, match=r"policies\['old'\]: .*parts had not kept this policy when it began"):
        agentkit.resume(parts, num_steps=49)
    assert_equal(agentkit.load(parts / "frozen-old.npz").arrays, agentkit.load(old, policy="second").arrays)


def test_a_launched_run_keeps_it_and_a_new_run_takes_none_that_was_there(tmp_path):
    agentkit.run(config(tmp_path / "old", policy_of="each", num_steps=9))
    plan = against(tmp_path / "new", agentkit.Frozen(tmp_path / "old", "second"))
    plan.run_directory.mkdir()
    (kept := plan.run_directory / "frozen-old.npz").write_text("of another run")
    _, trained, players = check_policies(plan)
    prepare_multi_agent(plan, LaunchConfig(), False, trained, players)
    began_with = agentkit.load(tmp_path / "old", policy="second").arrays
    assert_equal(agentkit.load(kept).arrays, began_with)
    shutil.rmtree(tmp_path / "old")
    assert_equal(check_policies(plan)[2]["old"].loaded.arrays, began_with)


def test_a_policy_that_no_file_can_hold_is_played_against_all_the_same(tmp_path, monkeypatch):
    def save(self, path):
        raise ConfigError("The agent learns by a learner of its own.")

    agentkit.run(config(tmp_path / "old", policy_of="each", num_steps=9))
    monkeypatch.setattr(LoadedPolicy, "save", save)
    (tmp_path / "new").mkdir()
    (kept := tmp_path / "new" / "frozen-old.npz").write_text("of another run")
    with pytest.warns(UserWarning, match=r"policies\['old'\] cannot be kept in the run folder, and is what .*old has"):
        agentkit.run(against(tmp_path / "new", agentkit.Frozen(tmp_path / "old", "second"), 9))
    assert not kept.exists()


def test_a_frozen_policy_that_is_said_to_be_itself_is_refused(tmp_path):
    agentkit.run(config(tmp_path / "old", policy_of="each", num_steps=9))
    agentkit.run(against(tmp_path / "new", agentkit.Frozen(tmp_path / "old", "second"), 9))
    record = (tmp_path / "new" / "config.json").read_text()
    itself = record.replace(str(tmp_path / "old"), str(tmp_path / "new")).replace(
        '"policy": "second"', '"policy": "old"'
    )
    assert itself != record
    (tmp_path / "new" / "config.json").write_text(itself)
    (tmp_path / "new" / "frozen-old.npz").unlink()
    with pytest.raises(ConfigError, match="policy 'old' is a frozen one, which comes from this run again"):
        load_player(agentkit.Frozen(tmp_path / "new", "old"), TicTacToe().agent_specs()["second"])


OWN_CODE = """
import haiku as hk


def torso(observation):
    return hk.Linear(4)(hk.Flatten()(observation["observation"]))
"""


def test_a_frozen_policy_of_ones_own_code_is_read_with_its_import(tmp_path, monkeypatch):
    (tmp_path / "torso_of_frozen.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = dqn.make_agent(DQN.config, torso=importlib.import_module("torso_of_frozen").torso)
    agentkit.run(config(tmp_path / "old", {"a": own, "b": "random"}, {"first": "a", "second": "b"}, num_steps=9))
    sys.modules.pop("torso_of_frozen")
    frozen, imports = agentkit.Frozen(tmp_path / "old", "a"), ("torso_of_frozen",)
    spec = TicTacToe().agent_specs()["second"]
    with pytest.raises(ConfigError, match="--import torso_of_frozen"):
        load_player(frozen, spec)
    again = multi_agent_from_record(against(None, frozen).describe(), tmp_path, imports=imports).policies["old"]
    assert again == dataclasses.replace(frozen, imports=imports)
    assert load_player(again, spec).policy is not None
    sys.modules.pop("torso_of_frozen")
    found = agentkit.evaluate_multi_agent(tmp_path / "old", 1, opponents={"second": frozen}, imports=imports)
    assert found["steps"] == 9
