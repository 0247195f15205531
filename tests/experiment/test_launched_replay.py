"""A replay node: what it says while it saves for a learner, and who finds it where."""

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from agentkit.distributed import NodeContext, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.errors import ConfigError
from agentkit.experiment.launching.nodes import replay as replay_node
from agentkit.experiment.launching.nodes.actor import connect
from agentkit.experiment.launching.nodes.learner_data import make_data
from agentkit.replay import InProcessReplay
from agentkit.replay.served import ServedReplay
from agentkit.testing.replay import make_step, pair_table, wait_until, write_pairs
from agentkit.wire import client as wire_client
from agentkit.wire import private_address
from tests.replay.served.pair import Host

pytestmark = pytest.mark.both_stacks

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def store():
    with RunStore(RUN) as made:
        yield made


def test_an_actor_goes_on_with_a_server_that_comes_back_elsewhere(store, tmp_path, monkeypatch):
    """Each row once, also those of which it does not know whether they are in."""
    monkeypatch.setattr(wire_client, "LOOK_SECONDS", 0.1)
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(contextlib.closing(Host([pair_table()])))
        client = stack.enter_context(contextlib.closing(RunStoreClient(store.address, RUN, node="actor-0")))
        endpoint = {"node": "replay-0", "address": host.address}
        replay = replay_node.connect_to_replay(host.tables, endpoint, timeout=30.0, wait=30.0, store=client)
        stack.callback(replay.close)
        replay.push = lambda seconds: None  # No other thread hears answers.
        writer = replay.writer(1)
        writer._hear_now = lambda timeout: False
        writer.create_item("pairs", 1.0, writer.append(make_step(0)), 1, inline=np.float32(0))
        writer._send()
        del writer._hear_now
        assert wait_until(lambda: host.server.replay.info("pairs").num_inserted == 1)
        host.stop()
        host.server.replay.save(tmp_path)
        host.server.close()
        host.address = private_address(host.folder, "elsewhere")
        host.start(tmp_path)
        store.put("endpoint/replay-0", {"value": {**endpoint, "address": host.address}})
        write_pairs(writer, "pairs", [1])
        assert host.server.replay.contents("pairs")[0].action.tolist() == [0, 1]


def test_a_server_that_listens_on_another_machine_alone_is_said_to(tmp_path):
    endpoint = {"node": "replay-0", "address": f"ipc://{tmp_path}/replay", "host": "another-machine"}
    agent = SimpleNamespace(make_tables=lambda spec: [pair_table()], batch_plan=None)
    with pytest.raises(ConfigError, match=r"Replay is on another-machine, .* --listen"):
        connect(None, [pair_table()], endpoint, contextlib.ExitStack())
    with pytest.raises(ConfigError, match="Replay is on another-machine"):
        make_data(agent, None, endpoint)


def test_a_save_is_announced_with_the_time_that_its_size_asks_for(store, tmp_path):
    seen, stop = [], threading.Event()

    class Slow(InProcessReplay):
        def save(self, directory):
            seen.append(store.get("busy/replay-0"))
            super().save(directory)

    with contextlib.ExitStack() as stack:
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
