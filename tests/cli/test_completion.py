"""Completion by the shell: agents, environments, the named agent's settings, run folders; and bash's own script."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

from agentkit import envs
from agentkit.agents import registry
from agentkit.cli.words.completion import complete
from agentkit.cli.words.looking_commands import SHELLS
from agentkit.cli.words.parser import COMMANDS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_commands_and_agents_are_offered():
    assert complete([""]) == sorted(COMMANDS)
    for command in ("show", "train", "launch", "offline"):
        assert complete([command, ""])[: len(registry.names())] == sorted(registry.names())
    assert complete(["train", "dq"]) == ["dqn"]
    assert complete(["nothing", ""]) == []


@pytest.mark.parametrize("agent", registry.names())
def test_settings_are_the_agents_own(agent):
    expected = sorted(f"{field.name}=" for field in dataclasses.fields(registry.config_class(agent)))
    assert complete(["train", agent, "--env", "agentkit:catch", "--set", ""]) == expected


def test_options_and_their_values_are_offered():
    assert complete(["train", "dqn", "--eval-"]) == ["--eval-episodes", "--eval-every", "--eval-max-steps"]
    assert set(complete(["train", "dqn", "--env", ""])) >= set(envs.available())
    assert complete(["train", "dqn", "--on-nan", ""]) == ["stop", "warn"]
    assert complete(["train", "--seed", ""]) == []  # A number, which nobody can guess.
    assert complete(["train", "dqn", "--tensorboard", "--see"]) == ["--seed", "--seeds"]
    assert complete(["train", "dqn", "--preset", "no"]) == ["none"]
    assert complete(["evaluate", "runs/one", "--checkpoint", ""]) == ["best", "newest"]
    assert complete(["plot", "runs/one", "--ou"]) == ["--out"]  # And not its name of before.
    assert complete(["node", "lea"]) == ["learner"]
    assert complete(["node", "actor", "--ind"]) == ["--index"]
    assert complete(["completion", ""]) == sorted(SHELLS)


def test_names_of_gymnasium_are_offered_once_it_is_named():
    pytest.importorskip("gymnasium")
    assert complete(["train", "sac", "--env", "gymnasium:HalfC"]) == ["gymnasium:HalfCheetah-v5"]
    assert complete(["train", "sac", "--env", "gymnasium_vector:Pend"]) == ["gymnasium_vector:Pendulum-v1"]
    assert complete(["train", "sac", "--env", "gymnasi"]) == ["gymnasium:", "gymnasium_vector:"]


def test_run_folders_and_files_of_sweeps_are_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/one", "runs/group/seed0", "runs/other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("runs/one/config.json", "runs/group/group.json", "runs/group/seed0/config.json", "mine.toml"):
        (tmp_path / name).touch()
    assert complete(["evaluate", ""]) == ["runs/", "runs/group", "runs/one"]
    assert complete(["plot", "runs/one", "runs/g"]) == ["runs/group", "runs/group/"]
    assert complete(["train", "--resume", "runs/group/"]) == ["runs/group/seed0"]
    assert complete(["evaluate", f"{tmp_path}/runs/on"]) == [f"{tmp_path}/runs/one"]
    assert complete(["sweep", ""]) == complete(["train", "dqn", "--config", ""]) == ["mine.toml"]
    for words in (["compare"], ["watch"], ["export-policy"], ["push"], ["train", "dqn", "--init-from"]):
        assert complete([*words, "runs/on"]) == ["runs/one"]
    assert complete(["plot", "runs/one", "-o", ""]) == []  # A file: the shell's own.


def test_bash_completes_words_with_colons_and_equals_signs(tmp_path):
    agentkit = tmp_path / "agentkit"
    start = "import sys; from agentkit.cli import main; sys.exit(main())"
    agentkit.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    agentkit.chmod(0o755)
    script = """
eval "$(agentkit completion bash)"
compopt() { :; }
try() { COMP_LINE="$1"; COMP_POINT=${#1}; _agentkit; echo "${COMPREPLY[*]}"; }
try "agentkit tra"
try "agentkit train dqn --env agentkit:cat"
try "agentkit train dqn --set epsilon_l"
try "agentkit node "
"""
    found = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    # Bash itself keeps what is before the colon.
    assert found.stdout.splitlines() == ["train", "catch", "epsilon_ladder=", "actor evaluator learner replay"]
    assert found.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_that_asks_for_itself(shell, capsys):
    from agentkit.cli import main

    assert main(["completion", shell]) == 0
    assert f"agentkit completion {shell} -- " in capsys.readouterr().out
