"""A replay node that saves for a learner says so: its main loop stands still for as long as that takes."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

from agentkit.distributed import NodeContext, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.experiment.launching.nodes import replay as replay_node
from agentkit.replay import InProcessReplay
from agentkit.replay.served import ServedReplay
from agentkit.testing.replay import pair_table

pytestmark = pytest.mark.both_stacks

RUN = "0123456789abcdef"


def test_a_save_is_announced_with_the_time_that_its_size_asks_for(tmp_path):
    seen, stop = [], threading.Event()

    class Slow(InProcessReplay):
        def save(self, directory):
            seen.append(store.get("busy/replay-0"))
            super().save(directory)

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RunStore(RUN))
        client = stack.enter_context(contextlib.closing(RunStoreClient(store.address, RUN, node="replay-0")))
        context = stack.enter_context(contextlib.closing(NodeContext(NodeId("replay-0", "replay", 0), client)))
        experiment = SimpleNamespace(replay=Slow, seed=0)
        _, announce, serve = replay_node._open_served(
            context, [pair_table()], f"ipc://{tmp_path}/replay", experiment, stack, listen="lo"
        )
        thread = threading.Thread(target=lambda: [serve(0.05) for _ in iter(stop.is_set, True)])
        thread.start()
        try:
            with contextlib.closing(ServedReplay([pair_table()], announce())) as replay:
                (tmp_path / "saved").mkdir()
                replay.save(tmp_path / "saved")
        finally:
            stop.set()
            thread.join(30.0)
        assert store.get("busy/replay-0") is None
    assert [(call["what"], call["seconds"]) for call in seen] == [("saving replay", replay_node.contents_seconds(0))]
