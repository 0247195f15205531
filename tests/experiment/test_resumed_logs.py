"""Which rows of a node's log stay where the node is started again, and which where its run goes back."""

import contextlib

import pytest

from agentkit import checkpoint
from agentkit.agents import dqn
from agentkit.distributed import NodeContext, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.launching.nodes import actor, evaluator
from agentkit.experiment.launching.run import run_store_values
from agentkit.experiment.launching.sharing.common import resume_step
from agentkit.loggers import CsvLogger, read_csv

pytestmark = pytest.mark.both_stacks

SECRET = "0123456789abcdef0123456789abcdef"


@contextlib.contextmanager
def joined(store, directory, incarnation=0, role="evaluator", index=0):
    name = f"{role}-{index}"
    with contextlib.closing(RunStoreClient(store.address, SECRET, node=name)) as client:
        context = NodeContext(NodeId(name, role, index, incarnation, directory), client)
        try:
            yield context
        finally:
            context.close()


@pytest.fixture
def run(tmp_path):
    """A run that has a checkpoint of step 5."""
    checkpoint.write(tmp_path / "checkpoints", 5, {})
    return tmp_path


def write(store, run, step):
    """Starts an evaluator, as another scheduler does, that writes a row; returns the steps of all that are there."""
    experiment = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 100, run_directory=run)
    with joined(store, run) as context, contextlib.ExitStack() as stack:
        log = evaluator.open_log(context, experiment, stack)
        context.ready()
        log.write({"steps": step})
    return [int(row["steps"]) for row in read_csv(run / "logs" / "evaluation.csv")[1]]


def test_a_node_that_is_started_again_keeps_its_log_and_one_of_a_run_that_goes_back_cuts_it(run):
    with RunStore(SECRET) as store:
        assert [write(store, run, step) for step in (4, 6, 8)][-1] == [4, 6, 8]
        store.forget_node("evaluator-0")  # `scale` took it away, and adds it again.
        assert write(store, run, 9) == [4, 6, 8, 9]
    with RunStore(SECRET) as store:
        assert write(store, run, 7) == [4, 7]


def test_nodes_go_on_from_where_the_supervisor_does_whatever_checkpoints_say(run):
    """The newest one is damaged, and passed over; or it was written after the program had gone on."""
    with RunStore(SECRET) as store, joined(store, run) as context:
        assert resume_step(context) == 5  # A program of one's own says nothing.
        for state, step in ((None, 0), ({"num_steps": 3}, 3)):
            for name, value in run_store_values(state).items():
                store.put(name, value)
            assert resume_step(context) == step


def test_an_evaluator_goes_on_after_the_evaluations_that_the_run_has_from_where_it_goes_on(run):
    """The checkpoint of step 5 says nothing of them: one may have been broken off, by a signal or a kill."""
    logs = run / "logs"
    for name, steps in (("evaluation", [2]), ("evaluation-1", [3, 6]), ("evaluator", [4])):
        with CsvLogger(logs / f"{name}.csv") as log:
            for step in steps:
                log.write({"steps": step, "episode_return": 0.0})
    (logs / "evaluation-2.csv").write_text("steps\nmany\n")
    with RunStore(SECRET) as store, joined(store, run) as context:
        assert evaluator.last_evaluation(context) == 3
        context.ready()  # A kill within the program drops nothing.
        assert evaluator.last_evaluation(context) == 6
    with RunStore(SECRET) as store, joined(store, run / "elsewhere") as context:
        assert evaluator.last_evaluation(context) == 0


def act(store, run, num_episodes):
    """Two actors end episodes of 10 steps in turn, each told of the other's; returns the program's counts."""
    experiment = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 100, run_directory=run)
    with joined(store, run, role="actor") as one, joined(store, run, role="actor", index=1) as two:
        with contextlib.ExitStack() as stack:
            logs = [(each, actor.open_log(each, experiment, stack)) for each in (one, two)]
            for number in range(1, num_episodes // 2 + 1):
                for context, log in logs:
                    context.heartbeat(steps=10 * number, episodes=number)
                    context.sync()
                    log({"steps": 10 * number, "episodes": number, "episode_return": 0.0})
        return store.status()["totals"]


def test_actors_log_the_episodes_of_all_of_them_also_after_a_resume(tmp_path):
    with RunStore(SECRET) as store:
        totals = act(store, tmp_path, 6)
    checkpoint.write(tmp_path / "checkpoints", totals["steps"], {"totals": totals})
    with RunStore(SECRET) as store:
        store.restore_counts(totals)
        act(store, tmp_path, 4)
    rows = [row for name in ("train", "train-1") for row in read_csv(tmp_path / "logs" / f"{name}.csv")[1]]
    assert sorted(int(row["episodes"]) for row in rows) == list(range(1, 11))
    assert all(int(row["steps"]) == 10 * int(row["episodes"]) for row in rows)
