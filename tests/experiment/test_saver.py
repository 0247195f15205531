"""When a launched learner writes a checkpoint, and what it says was counted by then."""

from types import SimpleNamespace

import pytest

from agentkit import checkpoint
from agentkit.distributed import NodeTakenError, RunStoreError
from agentkit.experiment.launching.nodes import learner as learner_node
from agentkit.experiment.runs.lock import RunFolder

pytestmark = pytest.mark.both_stacks


class Context:
    """A learner's, whose run store answers until it is told not to."""

    name, index, should_stop, replaced = "learner-0", 0, True, False
    away, store_totals, counted = False, {"steps": 20}, {}

    def __init__(self, folder):
        self.run_directory, self.store = folder, self

    def sync(self):
        if self.replaced:
            raise NodeTakenError("another process is learner-0 now")

    def save_counts(self):
        if self.away:
            raise RunStoreError("it does not answer")
        return {"totals": self.store_totals, "counted": self.counted}

    def totals(self):
        return {"steps": 25}


def make_saver(context):
    experiment = SimpleNamespace(checkpoint_period=10)
    folder = RunFolder(context.run_directory)
    return learner_node._Saver(context, folder, experiment, None, None, None)


def test_a_learner_whose_name_was_taken_over_writes_no_checkpoint_beside_the_others(tmp_path, capsys):
    """Neither at the end nor when the next one is due: its folder is the other's."""
    context = Context(tmp_path)
    context.replaced = True
    saver = make_saver(context)
    saver.save_if_due()
    saver.save()
    assert checkpoint.steps(tmp_path / "checkpoints") == []
    assert capsys.readouterr().err.count("another process is this learner now") == 2


def test_a_store_that_is_away_makes_no_step_count_twice(tmp_path):
    """Nodes by hand tell a store that comes back all that they have counted since the checkpoint."""
    context = Context(tmp_path)
    context.counted = {"actor-0": {"process": "p", "counts": {"steps": 20}}}
    saver = make_saver(context)
    saver._counts()
    context.away = True
    assert saver._counts() == ({"steps": 20}, context.counted)

    saver = make_saver(context)
    state = {"launched": True, "learner": {}, "totals": {"steps": 20}, "counted": context.counted}
    checkpoint.write(tmp_path / "checkpoints", 20, state)
    saver._learner = SimpleNamespace(restore=lambda state: None)
    assert saver.restore()
    assert saver._counts() == ({"steps": 20}, context.counted), "it was started again itself"


def test_a_store_that_is_away_costs_no_steps_where_every_node_ends_with_it(tmp_path):
    context = Context(tmp_path)
    saver = make_saver(context)
    saver._counts()
    context.away = True
    assert saver._counts() == ({"steps": 25}, {})
