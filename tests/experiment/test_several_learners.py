"""Several learners on one stream of steps, in one run folder: killed, resumed, loaded, and refused."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import psutil
import pytest

import agentkit
from agentkit import checkpoint, distributed, experiment
from agentkit.agents import dqn, ppo
from agentkit.agents.common.experience_wrappers import DroppingExtras
from agentkit.cli import main
from agentkit.errors import CheckpointError, ConfigError, UnknownNameError
from agentkit.experiment.launching.nodes.actor import actor_node
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import replay_node
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.runs.learner_folders import learner_folder
from agentkit.experiment.runs.new_folder import make_this_folder
from agentkit.loggers.program_table import all_tables
from agentkit.replay import InProcessReplay

PPO = ppo.make_agent(ppo.Config(segment_length=16, num_minibatches=2, num_epochs=1, hidden_sizes=(16,)))
DQN = dqn.make_agent(dqn.Config(batch_size=16, min_replay_size=100, hidden_sizes=(16,), n_step=1, updates_per_step=0.2))
NAMES = ("ppo", "dqn")


def configs(folder, num_steps=1_000_000, **agents):
    """Of two kinds of learner, the first of which acts; or of others."""
    given = {"num_envs": 4, "evaluation_period": 0, "checkpoint_period": 400, "run_directory": folder}
    beside = dataclasses.replace(DQN, experience=DroppingExtras(DQN.experience))
    agents = agents or {"ppo": PPO, "dqn": beside}
    return {
        name: experiment.ExperimentConfig(each, "agentkit:catch", num_steps, **given) for name, each in agents.items()
    }


def make_program(plans, spec=None, ids=None):
    """The plan of examples/plans/dqn_and_ppo.py; `ids` other than the experiments' are for mistakes."""
    program = distributed.Program("two learners", experiment.make_roles(num_actors=1))
    replays, learners = [], []
    for name, config in plans.items():
        own = {"learner_id": name} if ids is None else ids[name]
        replays.append(program.add_node("replay", replay_node, config, spec, **own))
        learners.append(program.add_node("learner", learner_node, config, spec, replays[-1], **own))
    (acts, *others), fed = plans.values(), replays[1:]
    beside = [(each.agent, replay) for each, replay in zip(others, fed, strict=True)]
    program.add_node("actor", actor_node, acts, spec, replays[0], learners[0], extra_learners=beside)
    return program


def run(folder, num_steps=1_000_000, **given):
    plans = configs(folder, num_steps)
    return experiment.run_learners(make_program(plans, find_spec(plans["ppo"])), plans, **given)


def newest(folder, name):
    return checkpoint.read_latest(learner_folder(folder, name) / "checkpoints")


def num_inserted(found, contents, plan):
    """How many items the table of a checkpoint was given, at its time."""
    replay = InProcessReplay(plan.agent.make_tables(find_spec(plan)))
    replay.restore(found.path / contents)
    return sum(replay.info(name).num_inserted for name in replay.tables)


def kill_in_the_middle(folder):
    """Runs the program in processes until each learner has saved, and ends all of them by kill -9."""
    code = f"from tests.experiment.test_several_learners import run; run({str(folder)!r})"
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        deadline = time.monotonic() + 250.0
        while not all(newest(folder, name) for name in NAMES):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        assert main(["status", str(folder)]) == 0
    finally:
        own = psutil.Process(process.pid)
        for each in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(timeout=10.0)


@pytest.mark.full
def test_each_learner_goes_on_from_its_own_checkpoint(tmp_path, capsys):
    """All are killed; then one learner is, of those that were resumed."""
    kill_in_the_middle(folder := tmp_path / "run")
    assert "dqn/transitions" in capsys.readouterr().out, "of agentkit status"
    saved, plans = {name: newest(folder, name) for name in NAMES}, configs(folder)
    inserted = [num_inserted(saved[name], at, plans[name]) for name, at in (("dqn", "replay-1"), ("ppo", "replay"))]
    last = max(saved.values(), key=lambda each: each.step)
    began, killed, back = {}, {}, []

    def look(status):
        tables = all_tables(status)
        began.update(tables if len(tables) == 2 and not began else {})
        node = status["nodes"]["learner-1"]
        if not killed and node["state"] == "ready" and newest(folder, "dqn").step > last.step:
            killed["dqn"] = newest(folder, "dqn").state["learner"]["num_updates"]
            os.kill(node["pid"], signal.SIGKILL)
        if node["restarts"] and node["state"] == "ready":
            back.append(node["gauges"]["updates"])

    status = run(folder, last.step + 2_000, resume=True, on_status=look)
    nodes, totals = status["nodes"], status["totals"]
    assert totals["steps"] >= last.step + 2_000, status["stop"]
    assert totals["steps"] - nodes["actor-0"]["counts"]["steps"] == last.state["totals"]["steps"]
    assert status["values"]["explored/actor-0"] == last.state["explored"]["actor-0"] > 0
    taken = nodes["learner-0"]["gauges"]["updates"] - nodes["learner-0"]["counts"]["updates"]
    assert taken == saved["ppo"].state["learner"]["num_updates"] > 0
    assert killed["dqn"] > saved["dqn"].state["learner"]["num_updates"] > 0
    assert nodes["learner-1"]["restarts"] == 1 and min(back) >= killed["dqn"]
    for table, before in zip(began.values(), inserted, strict=True):
        assert table["num_inserted"] >= before > 0, (began, inserted)
    for name in NAMES:
        state = newest(folder, name).state["learner"]["state"].values()
        for array in jax.tree.leaves(agentkit.load(folder, policy=name).arrays):
            assert any(np.array_equal(array, own) for own in state), name
    assert main(["evaluate", str(learner_folder(folder, "ppo")), "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"ppo": {}, "dqn": {}}, "a replay node of each of the learners ppo, dqn, found replay nodes of: None, None"),
        ({"ppo": {"learner_id": "ppo"}, "dqn": {"learner_id": "ppo"}}, "found replay nodes of: ppo, ppo. Say whose"),
    ],
)
def test_nodes_without_an_id_of_their_own_are_refused(ids, message, tmp_path):
    plans = configs(tmp_path / "run")
    with pytest.raises(ConfigError, match=message):
        experiment.run_learners(make_program(plans, ids=ids), plans)
    program = make_program(plans)
    program.add_node("learner", learner_node, plans["dqn"], None, distributed.Handle("replay-1"), learner_id="dqn")
    with pytest.raises(ConfigError, match=r"a learner node of each .*, found learner nodes of: ppo, dqn, dqn"):
        experiment.run_learners(program, plans)
    assert not (tmp_path / "run").exists()
    context = SimpleNamespace(index=1, run_directory=tmp_path, name="learner-1")
    with pytest.raises(ConfigError, match=r"the same checkpoints as learner-0.* a learner_id, .*run_learners, as exam"):
        learner_node(context, plans["dqn"], None, {})


@pytest.fixture
def saved(tmp_path):
    """The folder of a run that has saved at different steps."""
    for step, (name, plan) in enumerate(configs(tmp_path).items(), start=400):
        write_config(plan, learner_folder(tmp_path, name), launch={}, learners=NAMES)
        state = {"experiment": plan.describe(), "totals": {"steps": step}, "num_steps": step, "launched": True}
        contents = {"replay" if name == "ppo" else "replay-1": lambda folder: (folder / "rows").touch()}
        checkpoint.write(learner_folder(tmp_path, name) / "checkpoints", step, state, contents)
    return tmp_path


def resume(plans):
    return experiment.run_learners(make_program(plans), plans, resume=True)


def test_what_does_not_go_on_with_a_run_is_refused(saved, tmp_path):
    plans = configs(saved)
    with pytest.raises(ConfigError, match=r"has a run of several learners in it already \(dqn, ppo\).* resume=True"):
        experiment.run_learners(make_program(plans), plans)
    with pytest.raises(experiment.ResumeError, match="is of the learners ppo, dqn, and this program has ppo, other"):
        resume(configs(saved, ppo=PPO, other=DQN))
    with pytest.raises(experiment.ResumeError, match=r"learners.dqn.* was made with agent=dqn, and this .* has ppo"):
        resume(configs(saved, ppo=PPO, dqn=PPO))
    with pytest.raises(ConfigError, match="run_directory: expected the same one for all learners, found"):
        resume({"ppo": plans["ppo"], "dqn": configs(tmp_path / "other")["dqn"]})
    with pytest.raises(experiment.ResumeError, match=r"replay of (dqn|ppo) was saved as replay.* in the order that"):
        resume({name: plans[name] for name in ("dqn", "ppo")})
    with pytest.raises(experiment.ResumeError, match=r"has no run of several learners in it\. Leave out resume"):
        resume(configs(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"num_steps: expected the same of all learners, .*ppo=1,000,000, dqn=5"):
        resume(plans | {"dqn": dataclasses.replace(plans["dqn"], num_steps=5)})
    with pytest.raises(ConfigError, match="found no learner"):
        experiment.run_learners(distributed.Program("none"), {})
    shutil.rmtree(learner_folder(saved, "dqn") / "checkpoints")
    with pytest.raises(experiment.ResumeError, match="the learners dqn have no checkpoint, and others have"):
        resume(plans)
    write_config(plans["ppo"], saved)
    with pytest.raises(experiment.ResumeError, match="is no run of several learners: go on with it as it was begun"):
        resume(plans)
    with pytest.raises(ConfigError, match="To resume, an experiment needs the run_directory"):
        resume(configs(None))


def test_no_other_command_goes_on_with_several_learners(saved, capsys):
    for folder in (saved, learner_folder(saved, "dqn")):
        assert main(["status", str(folder)]) == 2
        assert "several learners, which has ended. Run the code that made it" in capsys.readouterr().err
    part, alone = learner_folder(saved, "ppo"), configs(saved, num_steps=20)["ppo"]
    together = r"is of a program of several learners \(.*\), which go on together: run the code that made"
    with pytest.raises(ConfigError, match="has a run of several learners in it already"):
        agentkit.run(alone)
    beside = r"ppo is a folder of a run of several learners.* \(dqn, ppo\)\. Go on with it by the code that made it"
    with pytest.raises(ConfigError, match=beside):
        agentkit.run(dataclasses.replace(alone, run_directory=part))
    with pytest.raises(ConfigError, match=beside):
        make_this_folder(part)
    agentkit.run(dataclasses.replace(alone, run_directory=saved.parent / "learners" / "a"))
    make_this_folder(saved.parent / "learners" / "b")  # Runs of one agent may lie in a folder of that name.
    for go_on in (
        lambda: agentkit.run(alone, resume=True),
        lambda: agentkit.launch(alone, resume=True),
        lambda: agentkit.resume(part),
        lambda: agentkit.resume(part, replay="in_process"),
        lambda: agentkit.resume_launch(part),
    ):
        with pytest.raises(CheckpointError, match=together):
            go_on()
    with pytest.raises(ConfigError, match=r"the folder of a program of several learners \(dqn, ppo\)\. Each has a run"):
        agentkit.resume(saved)
    with pytest.raises(ConfigError, match=r"has the policies dqn, ppo: say which, policy=\.\.\."):
        agentkit.load(saved)
    with pytest.raises(UnknownNameError, match="Known: dqn, ppo"):
        agentkit.load(saved, policy="qdn")
    assert main(["evaluate", str(saved)]) == 2
    assert f"Runs are in it, such as {learner_folder(saved, 'dqn')}." in capsys.readouterr().err
