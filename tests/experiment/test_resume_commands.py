"""A run goes on by the command that began it, and by no other, and not to fewer steps than it has taken."""

import dataclasses
import functools
import json

import pytest

import agentkit
from agentkit import checkpoint
from agentkit.agents import discrete_cql, dqn
from agentkit.callbacks import stop_at
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.launching.external import host_run
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.runs.learner_folders import learner_folder
from agentkit.experiment.runs.resume_checks import ResumeError, prepare
from agentkit.loggers import CsvLogger
from tests.agents import offline_data

EPISODES = offline_data.make_episodes(offline_data.CATCH, 2, [0.5])
BEGUN = {"train": {}, "launch": {"launch": {}}, "offline": {"offline": {"dataset": None, "evaluates": True}}}


def of_one(folder, **settings):
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8))
    return agentkit.ExperimentConfig(agent, "agentkit:catch", 60, run_directory=folder, progress=False, **settings)


def of_data(folder):
    agent = discrete_cql.make_agent(discrete_cql.Config(hidden_sizes=(8,), batch_size=8))
    return agentkit.OfflineConfig(agent, EPISODES, 40, offline_data.CATCH, run_directory=folder)


def of_several(folder):
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8))
    policies = {"row": agent, "column": agent}
    return agentkit.MultiAgentConfig(policies, "agentkit:matrix_game", 60, run_directory=folder, progress=False)


def launch(plan):
    return agentkit.launch(plan, resume=True, num_actors=1, engine="threads")


GO_ON = {
    ("train", of_one): functools.partial(agentkit.run, resume=True),
    ("train", of_several): functools.partial(agentkit.run, resume=True),
    ("train", "folder"): agentkit.resume,
    ("launch", of_one): launch,
    ("launch", of_several): launch,
    ("launch", "folder"): agentkit.resume_launch,
    ("launch", functools.partial(of_one, replay="served")): functools.partial(host_run, store_port=0),
    ("offline", of_data): functools.partial(agentkit.run_offline, resume=True),
    ("offline", "folder"): agentkit.resume_offline,
}
CASES = [
    pytest.param(command, make, go_on, begun, id=f"{number}-{command}-{begun}")
    for number, ((command, make), go_on) in enumerate(GO_ON.items())
    for begun in BEGUN
    if begun != command and not (make is of_several and begun == "offline")
]


@pytest.mark.parametrize(("command", "make", "go_on", "begun"), CASES)
def test_another_command_refuses_it_and_leaves_it_as_it_is(command, make, go_on, begun, tmp_path):
    makers = {"offline": lambda folder: of_data(folder).as_experiment()}
    plan = (make if make is of_several else makers.get(begun, of_one))(tmp_path)
    write_config(plan, tmp_path, **BEGUN[begun])
    with CsvLogger(tmp_path / "logs" / "train.csv") as logger:
        logger.write({"steps": 10})
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=f"agentkit {begun} --resume"):
        go_on(tmp_path if make == "folder" else make(tmp_path))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "make"), [(command, make) for command, make in GO_ON if make in (of_one, of_several, of_data)]
)
def test_fewer_steps_than_were_taken_are_refused_and_leave_it_as_it_is(command, make, tmp_path):
    plan, fewer = make(tmp_path), {"num_updates": 30} if make is of_data else {"num_steps": 30}
    written = plan.as_experiment() if make is of_data else plan
    write_config(written, tmp_path, **BEGUN[command])
    apart = (command, make) == ("launch", of_several)
    for folder in [learner_folder(tmp_path, name) for name in plan.policies] if apart else [tmp_path]:
        state = {"experiment": written.describe(), "offline": make is of_data}
        checkpoint.write(folder / "checkpoints", 40, state, max_to_keep=1)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=f"has 40 (steps|updates) already, and {next(iter(fewer))}=30 "):
        GO_ON[command, make](dataclasses.replace(plan, **fewer))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "make", "go_on"), [(*key, go_on) for key, go_on in GO_ON.items() if key[1] != "folder"]
)
def test_before_its_first_checkpoint_it_goes_on_as_the_same_experiment_alone(command, make, go_on, tmp_path):
    plan = make(tmp_path)
    write_config(plan.as_experiment() if make is of_data else plan, tmp_path, **BEGUN[command])
    before = contents(tmp_path)
    with pytest.raises(ResumeError, match=r"The run .* was made with seed=0, and this experiment has 7\. Resume with"):
        go_on(dataclasses.replace(plan, seed=7))
    other = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8, learning_rate=1e-9))
    changes = {"policies": {"row": other, "column": other}} if make is of_several else {"agent": other}
    with pytest.raises(ResumeError, match=r"learning_rate=|agent=discrete_cql"):
        go_on(dataclasses.replace(plan, **changes))
    assert contents(tmp_path) == before


def test_a_run_of_an_earlier_version_without_a_checkpoint_goes_on(tmp_path):
    """It lacks settings that there are now."""
    plan, file = of_one(tmp_path), tmp_path / "config.json"
    assert prepare(plan, resume=True) is None  # Of what always says so, before it has begun.
    write_config(plan, tmp_path)
    record = json.loads(file.read_text())
    for lacking in ({"ready", "on_device", "columns"}, {"callbacks"}):
        record = {name: value for name, value in record.items() if name not in lacking}
    del record["agent_config"]["n_step"]
    file.write_text(json.dumps(record))
    assert prepare(dataclasses.replace(plan, num_steps=70, callbacks=[stop_at(9)]), resume=True) is None
    with pytest.raises(CheckpointError, match="num_envs=None, and this experiment has 2"):
        prepare(dataclasses.replace(plan, num_envs=2), resume=True)


@dataclasses.dataclass(frozen=True)
class OwnSettings:
    learning_rate: float = 0.1
    width: int = 3


def test_a_run_of_an_own_agent_that_has_gained_a_setting_goes_on_without_a_checkpoint(tmp_path):
    plan, file = of_one(tmp_path), tmp_path / "config.json"
    plan = dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, config=OwnSettings()))
    write_config(plan, tmp_path)
    record = json.loads(file.read_text())
    del record["agent_parts"]["config"]["fields"]["width"]
    file.write_text(json.dumps(record))
    assert prepare(plan, resume=True) is None
    other = dataclasses.replace(plan.agent, config=OwnSettings(0.2))
    with pytest.raises(CheckpointError, match=r"learning_rate=0\.1, and this experiment has 0\.2"):
        prepare(dataclasses.replace(plan, agent=other), resume=True)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}
