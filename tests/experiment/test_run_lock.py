"""Two trainings of one run folder: the second is refused at once, and a dead one is not in the way."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

import agentkit
from agentkit.agents import registry
from agentkit.cli import main
from agentkit.distributed import Program, RunStore
from agentkit.distributed.address_file import write_address_file
from agentkit.errors import ConfigError
from agentkit.experiment.launching import external
from agentkit.experiment.launching import run as launched
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.training.switching import refuse_second_supervisor

pytestmark = pytest.mark.both_stacks

HOLD = """
import multiprocessing, sys, time
from agentkit.experiment.runs.lock import run_lock
with run_lock(sys.argv[1]):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(240,))
    child.start()  # What an environment may do: it outlives a killed parent.
    print(child.pid, flush=True)
    time.sleep(240)
"""


@pytest.fixture(name="holder")
def _holder(tmp_path):
    """A process that holds the folder ``run``; and its child."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    os.kill(child, signal.SIGKILL)


def experiment(folder, steps=20):
    agent = registry.make("dqn", {"hidden_sizes": (8,), "min_replay_size": 10_000})
    return agentkit.ExperimentConfig(agent, "agentkit:catch", steps, run_directory=folder, evaluation_period=0)


@pytest.mark.full
def test_a_second_one_is_refused_by_each_command_until_the_first_is_dead(tmp_path, holder, capsys):
    run = tmp_path / "run"
    (run / "config.json").write_text("{}")
    plan = experiment(run)
    calls = [
        lambda: agentkit.run(plan, resume=True),
        lambda: agentkit.launch(plan, resume=True),
        lambda: external.host_run(plan, store_port=7799),
        lambda: agentkit.run_offline(
            agentkit.OfflineConfig(plan.agent, "none.npz", 20, run_directory=run), resume=True
        ),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=f"runs in {run} now .process {holder.pid} on .*stop it first"):
            call()
        assert holder.poll() is None  # It was not waited for.
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "lock"]

    holder.kill()
    holder.wait()
    (run / "config.json").unlink()
    assert agentkit.run(plan).steps == 20
    assert main(["train", "--resume", str(run), "--steps", "30"]) == 0
    with run_lock(run):
        assert main(["train", "--resume", str(run), "--steps", "40"]) == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert refusal.startswith("agentkit: A training or a program runs in") and f"{os.getpid()}" in refusal


@pytest.mark.parametrize("several", [False, True])
def test_a_program_on_a_host_whose_locks_do_not_reach_here_is_found_by_its_board(several, tmp_path):
    plan = experiment(tmp_path)
    if several:
        plan = agentkit.MultiAgentConfig(plan.agent, "agentkit:tic_tac_toe", 20, "shared", run_directory=tmp_path)
    write_config(plan, tmp_path, launch={})
    before = (tmp_path / "config.json").read_bytes()
    secret = "0123456789abcdef0123456789abcdef"
    with RunStore(secret) as store:
        write_address_file(tmp_path, store.address, secret)
        with pytest.raises(ConfigError, match=f"A program runs in {tmp_path} now .*Stop it first"):
            agentkit.launch(plan, resume=True)
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.parametrize("host", ["192.0.2.1", "localhost.example"])
def test_no_other_machine_is_connected_to_on_a_folders_word(host, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "agentkit.distributed.address_file.RunStoreClient", lambda *at, **how: asked.append(at) or store
    )
    secret = "0123456789abcdef0123456789abcdef"
    with RunStore(secret) as store:
        write_address_file(tmp_path, f"{host}:7700", secret)
        with pytest.warns(UserWarning, match=f"is at {host}:7700, which is not this machine. If it still runs, stop"):
            refuse_second_supervisor(tmp_path)
        assert not asked
        with pytest.raises(ConfigError, match="Stop it first"):
            refuse_second_supervisor(tmp_path, on_cluster=True)
        assert asked == [(f"{host}:7700", secret)]


def test_a_copy_of_a_running_programs_folder_goes_on_and_frees_nothing_of_it(tmp_path, monkeypatch):
    freed, run, copy = [], tmp_path / "run", tmp_path / "copy"
    monkeypatch.setattr(launched, "forget_parameters", lambda run_id, nodes: freed.append(run_id))
    secret = "0123456789abcdef0123456789abcdef"
    with RunStore(secret) as store:
        write_address_file(run, store.address, secret)
        shutil.copytree(run, copy)
        refuse_second_supervisor(copy)
        launched.forget_killed(copy, Program("test"))
        assert not freed
    launched.forget_killed(run, Program("test"))
    assert freed == [secret]


@pytest.mark.parametrize("where", ["notes.txt", "notes.txt/run"])
def test_a_file_is_no_run_folder(tmp_path, where):
    (tmp_path / "notes.txt").write_text("mine")
    refused = pytest.raises(ConfigError, match=f"folder {tmp_path / where} cannot be written to: Not a directory")
    with refused, run_lock(tmp_path / where):
        pytest.fail("it was taken for one")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_is_refused_leaves_no_folder(tmp_path):
    config = agentkit.OfflineConfig(experiment(None).agent, tmp_path / "none.npz", 20, run_directory=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"none\.npz"):
        agentkit.run_offline(config)
    assert not (tmp_path / "run").exists()
