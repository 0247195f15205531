"""A replay node: what it says while it saves for a learner, and who finds it where."""

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from agentkit import checkpoint, envs
from agentkit.agents import dqn
from agentkit.distributed import NodeContext, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.launching.nodes import replay as replay_node
from agentkit.experiment.launching.nodes.actor import connect
from agentkit.experiment.launching.nodes.learner_data import make_data
from agentkit.experiment.runs.learner_folders import handover_folder, newest_contents
from agentkit.replay import InProcessReplay
from agentkit.replay.served import ServedReplay
from agentkit.specs import make_environment_spec
from agentkit.testing.replay import make_step, pair_table, wait_until, write_pairs
from agentkit.wire import client as wire_client
from agentkit.wire import private_address
from tests.replay.served.pair import Host

pytestmark = pytest.mark.both_stacks

AGENT = dqn.make_agent(dqn.Config(hidden_sizes=(4,)))
SPEC = make_environment_spec(envs.make("agentkit:catch", seed=0))
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


def run_to_its_end(store, folder):
    """Runs a replay node that is to stop as soon as it is ready."""
    stop = threading.Event()
    stop.set()
    with contextlib.closing(RunStoreClient(store.address, RUN, node="replay-0")) as client:
        context = NodeContext(NodeId("replay-0", "replay", 0, 0, folder), client, stop=stop)
        with contextlib.closing(context):
            experiment = ExperimentConfig(AGENT, "agentkit:catch", 100, run_directory=folder)
            replay_node.replay_node(context, experiment, SPEC)


@pytest.mark.parametrize(
    ("saved", "learner", "handed"),
    [(None, True, [40]), (20, True, [40]), (40, True, []), (None, False, [40]), (20, False, [])],
)
def test_who_is_signalled_with_the_whole_program_hands_over_what_no_checkpoint_has(
    store, tmp_path, saved, learner, handed
):
    """As by a reboot: the learner saves after the server has gone, and its checkpoint is without contents.

    Where it has left, and its newest checkpoint has contents, nobody would read others.
    """
    if saved is not None:
        with InProcessReplay(AGENT.make_tables(SPEC)) as replay:
            checkpoint.write(tmp_path / "checkpoints", saved, {}, {"replay": replay.save})
    store.restore_counts({"steps": 40})
    with contextlib.closing(RunStoreClient(store.address, RUN, node="learner-0" if learner else "actor-0")) as client:
        client.heartbeat({}, {}, 0.0)
        store.stop("stopped by SIGTERM")
        run_to_its_end(store, tmp_path)
    assert checkpoint.steps(handover_folder(tmp_path, "replay"), "replay") == handed


def test_what_was_handed_over_is_removed_once_a_checkpoint_has_what_came_of_it(store, tmp_path, monkeypatch):
    with InProcessReplay(AGENT.make_tables(SPEC)) as replay:
        checkpoint.write(handover_folder(tmp_path, "replay"), 40, {}, {"replay": replay.save})
    checkpoint.write(tmp_path / "checkpoints", 40, {})
    store.stop("reached 50 steps")
    monkeypatch.setattr(replay_node, "_is_saved", lambda context, folder, contents: True)
    run_to_its_end(store, tmp_path)
    assert not handover_folder(tmp_path, "replay").exists()


def test_a_program_begins_with_the_contents_of_its_newest_checkpoint_or_with_the_newest_that_there_are(tmp_path):
    def write(step, *names):
        checkpoint.write(tmp_path / "checkpoints", step, {}, {name: lambda folder: None for name in names})

    def found(**settings):
        each = newest_contents(tmp_path, "replay", **settings)
        return each and each.path.relative_to(tmp_path).as_posix()

    handover = handover_folder(tmp_path, "replay")
    checkpoint.write(handover, 30, {}, {"replay": lambda folder: None})
    assert found() is None and found(begins=False) == "replay_handover/step_000000000030", "the run begins anew"
    write(20, "replay")
    assert found() == "checkpoints/step_000000000020", "its learner, too, was killed since"
    assert found(begins=False) == "replay_handover/step_000000000030"
    write(30)
    assert found() == found(begins=False) == "replay_handover/step_000000000030"
    write(40, "replay")
    assert found() == found(begins=False) == "checkpoints/step_000000000040"
