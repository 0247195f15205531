"""When a launched learner writes a checkpoint, and what it says was counted by then."""

from types import SimpleNamespace

import pytest

from agentkit import checkpoint
from agentkit.distributed import NodeTakenError
from agentkit.experiment.launching.nodes import learner as learner_node
from agentkit.experiment.runs.lock import RunFolder

pytestmark = pytest.mark.both_stacks


class Context:
    """A learner's, whose run store answers until it is told not to."""

    name, index, should_stop, replaced = "learner-0", 0, True, False

    def __init__(self, folder):
        self.run_directory, self.store = folder, self

    def sync(self):
        if self.replaced:
            raise NodeTakenError("another process is learner-0 now")


def make_saver(context):
    experiment = SimpleNamespace(checkpoint_period=10)
    folder = RunFolder(context.run_directory)
    return learner_node._Saver(context, folder, experiment, None, None, None)


def test_a_learner_whose_name_was_taken_over_writes_no_checkpoint_beside_the_others(tmp_path, capsys):
    """Neither at the end nor when the next one is due: its folder is the other's."""
    context = Context(tmp_path)
    context.replaced = True
    context.totals = lambda: {"steps": 10}
    saver = make_saver(context)
    saver.save_if_due()
    saver.save()
    assert checkpoint.steps(tmp_path / "checkpoints") == []
    assert capsys.readouterr().err.count("another process is this learner now") == 2
