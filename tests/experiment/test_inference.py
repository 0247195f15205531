"""Launched programs whose actions come from inference nodes: to the end, through a kill, and with stale parameters."""

import csv
import os
import signal
import time

import pytest

import agentkit
from agentkit.agents import dqn
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, LaunchConfig, make_program
from agentkit.experiment.launching.nodes.inference import inference_role
from tests.experiment.launched import Launched

pytestmark = [pytest.mark.both_stacks, pytest.mark.full]

START_SECONDS = 400.0
"""How long a program may take to start on a busy machine."""


def make_experiment(**settings):
    config = dqn.Config(hidden_sizes=(16,), min_replay_size=100, updates_per_step=0.1)
    return ExperimentConfig(dqn.make_agent(config), "agentkit:catch", **{"num_steps": 600, **settings})


def steps_of(status, name):
    return status["nodes"][name]["counts"].get("steps", 0)


@pytest.mark.full
def test_two_servers_share_three_actors_to_the_end(tmp_path):
    with Launched(tmp_path, 1500, "--actors", "3", "--inference", "2", "--eval-every", "500") as program:
        status = program.wait_for(
            lambda status: all(
                status["nodes"][f"inference-{i}"]["gauges"].get("num_actors") == n for i, n in ((0, 2), (1, 1))
            ),
            START_SECONDS,
        )
        assert program.end(START_SECONDS) == 0, program.output()
        run = program.directory
    with open(run / "logs" / "evaluation.csv", newline="") as file:
        assert float(list(csv.DictReader(file))[-1]["steps"]) >= 1500
    with open(run / "logs" / "program.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["actor_restarts"]) == int(last["inference_restarts"]) == 0
    assert set(status["nodes"]) >= {"inference-0", "inference-1", "actor-2"}


def test_a_program_goes_on_when_its_server_is_killed(tmp_path):
    words = ("--actors", "2", "--inference", "1", "--eval-every", "0", "--max-parameter-age", "60")
    with Launched(tmp_path, 1_000_000, *words) as program:
        before = program.wait_for(
            lambda status: all(steps_of(status, f"actor-{i}") > 200 for i in range(2)), START_SECONDS
        )
        for i in range(2):
            gauges = before["nodes"][f"actor-{i}"]["gauges"]
            assert 0 <= gauges["parameter_age_seconds"] < 60 and gauges["parameter_version"] >= 0
        pids = [program.pid(f"actor-{i}") for i in range(2)]
        killed = program.pid("inference-0")
        os.kill(killed, signal.SIGKILL)
        start = time.monotonic()
        after = program.wait_for(
            lambda status: (
                status["nodes"]["inference-0"]["restarts"] == 1 and status["nodes"]["inference-0"]["state"] == "ready"
            ),
            START_SECONDS,
        )
        counts = [steps_of(after, f"actor-{i}") for i in range(2)]
        after = program.wait_for(
            lambda status: (
                all(steps_of(status, f"actor-{i}") > counts[i] + 200 for i in range(2))
                and status["nodes"]["actor-0"]["gauges"]["parameter_version"]
                > before["nodes"]["actor-0"]["gauges"]["parameter_version"]
            ),
            START_SECONDS,
        )
        print(f"From the kill to 200 more steps of each actor: {time.monotonic() - start:.1f} s")
        assert pids == [program.pid(f"actor-{i}") for i in range(2)], "an actor died with its server"
        assert all(after["nodes"][f"actor-{i}"]["restarts"] == 0 for i in range(2))
        assert program.pid("inference-0") != killed
        processes = program.processes()
        program.process.send_signal(signal.SIGINT)
        assert program.end(60.0) == 130, program.output()
        assert not [process for process in processes if process.is_running()]


@pytest.mark.full
def test_actors_that_wait_for_a_server_stop_when_they_are_told(tmp_path):
    with Launched(tmp_path, 1_000_000, "--actors", "1", "--inference", "1", "--eval-every", "0") as program:
        program.wait_for(lambda status: steps_of(status, "actor-0") > 50, START_SECONDS)
        os.kill(program.pid("inference-0"), signal.SIGSTOP)  # It holds its connections and answers nothing.
        time.sleep(1.0)
        start = time.monotonic()
        program.process.send_signal(signal.SIGINT)
        assert program.end(60.0) == 130, program.output()
    assert time.monotonic() - start < 30.0


@pytest.mark.full
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_actors_that_step_several_environments(engine):
    seen = {}

    def on_status(status):
        for name, node in status["nodes"].items():
            seen[name] = {**seen.get(name, {}), **node["gauges"], **node["counts"]}

    result = agentkit.launch(
        make_experiment(num_envs=3, evaluation_period=0), num_actors=2, num_inference=1, engine=engine,
        on_status=on_status,
    )  # fmt: skip
    assert result.steps >= 600 and not result.interrupted
    assert seen["inference-0"]["actions"] >= 600
    assert seen["actor-0"]["parameter_version"] >= 0


def test_a_program_has_the_nodes_that_were_asked_for():
    experiment = make_experiment()
    program = make_program(experiment, LaunchConfig(num_actors=3, num_inference=2))
    assert program.nodes["actor-2"].dependencies() == {"replay-0", "learner-0", "inference-0", "inference-1"}
    assert program.nodes["inference-1"].dependencies() == {"learner-0"}
    assert program.roles["actor"].stop_order < program.roles["inference"].stop_order
    assert "inference" not in make_program(experiment, LaunchConfig()).roles
    cores = len(os.sched_getaffinity(0))
    assert inference_role(1000, 1).environment["NPROC"] == str(max(1, cores // 2 // 2))
    assert inference_role(1, 1).num_cpus == 1.0


@pytest.mark.parametrize(
    ("num_inference", "message"), [(-1, "at least 0, found -1"), (3, "0 to num_actors=2 inference nodes, found 3")]
)
def test_an_impossible_number_of_servers_is_refused(num_inference, message):
    with pytest.raises(ConfigError, match=message):
        LaunchConfig(num_actors=2, num_inference=num_inference)
