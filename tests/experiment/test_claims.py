"""Nodes that join by themselves: each name belongs to one process at a time."""

import contextlib
import os
import re
import threading

import pytest

from agentkit.agents import dqn
from agentkit.distributed import NodeContext, NodeTakenError, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.launching import external

pytestmark = pytest.mark.both_stacks

RUN = "0123456789abcdef0123456789abcdef"


@contextlib.contextmanager
def joined(store, life, index, role="actor"):
    """A node of a claimed index, which beats."""
    client = RunStoreClient(store.address, RUN, node=f"{role}-{index}", life=life)
    context = NodeContext(NodeId(f"{role}-{index}", role, index), client)
    with contextlib.closing(client), contextlib.closing(context):
        yield context


def test_a_second_actor_of_one_index_is_refused_while_the_first_lives(monkeypatch):
    monkeypatch.setattr("agentkit.distributed.context.HEARTBEAT_SECONDS", 0.1)
    with RunStore(RUN) as store, contextlib.closing(RunStoreClient(store.address, RUN)) as client:
        number, life = external._claim_index(client, "actor", 3)
        with joined(store, life, number) as first:
            with pytest.raises(NodeTakenError, match=f"actor-3 runs already: process {os.getpid()} on .*--index"):
                external._claim_index(client, "actor", 3)
            first._closed.set()  # As a kill: nothing is heard of it any more.
            assert external._claim_index(client, "actor", 3)[0] == 3


def test_an_actor_whose_index_was_taken_over_leaves_and_is_to_be_started_again():
    with RunStore(RUN) as store, joined(store, "one", 5) as first:
        first.sync()
        store._nodes["actor-5"]["beat_time"] -= 60.0  # Its machine slept.
        with contextlib.closing(RunStoreClient(store.address, RUN)) as second:
            assert second.claim("actor-5", "two") is None
        assert first.wait(5.0) and first.lost


def test_random_indices_never_collide(monkeypatch):
    monkeypatch.setattr(external, "NUM_INDICES", 8)
    monkeypatch.setattr(external, "CLAIM_SECONDS", 0.0)
    monkeypatch.setattr("agentkit.distributed.run_store.SILENT_SECONDS", 60.0)
    with RunStore(RUN) as store, contextlib.closing(RunStoreClient(store.address, RUN)) as client:
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(external._claim_index(client, "actor", None)[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(8))


@pytest.mark.parametrize(("role", "instead"), [("learner", "a run has one learner"), ("evaluator", "another --index")])
def test_a_second_learner_or_evaluator_is_refused_until_the_first_is_gone(role, instead, tmp_path, monkeypatch):
    """Two learners would train, publish and write checkpoints as one; a killed one takes its own place again."""
    monkeypatch.setattr("agentkit.distributed.context.HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr("agentkit.distributed.run_store.SILENT_SECONDS", 60.0)
    ran = []
    monkeypatch.setattr(external, "run_node", lambda node, address, stop: ran.append((node.name, address.life)) or 0)
    record = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 100).describe()
    with RunStore(RUN) as store:
        store.put("experiment", {**record, "run_directory": str(tmp_path)})
        assert external.join_run(role, connect=store.address, run_id=RUN) == 0
        with joined(store, ran[0][1], 0, role) as first:
            with pytest.raises(NodeTakenError, match=f"{role}-0 runs already: process {os.getpid()} on .*{instead}"):
                external.join_run(role, connect=store.address, run_id=RUN)
            first._closed.set()  # As a kill.
            monkeypatch.setattr("agentkit.distributed.run_store.SILENT_SECONDS", 0.5)
            assert external.join_run(role, connect=store.address, run_id=RUN) == 0
    assert [name for name, _ in ran] == [f"{role}-0"] * 2 and len({None, *(life for _, life in ran)}) == 3


def test_a_host_takes_no_key_that_strangers_know_or_guess(tmp_path, monkeypatch):
    path = tmp_path / "run_id"
    assert external._read_secret(path, "eth0") is None
    path.write_text(RUN + "\n")
    assert external._read_secret(path, "eth0") == RUN
    monkeypatch.setattr(external.os, "getuid", lambda: path.stat().st_uid + 1)
    assert external._read_secret(path, "eth0") == RUN, "on NFS what this process writes may be another user's"
    path.write_text("run-7\n")
    with pytest.raises(ConfigError, match=f"Remove {re.escape(str(path))}, and a new one is made.* found 5 "):
        external._read_secret(path, "lo")
    path.write_text(RUN)
    monkeypatch.setattr(external, "_owner_of_new", lambda path: path.stat().st_uid + 1)
    assert external._read_secret(path, "lo") == RUN
    with pytest.raises(ConfigError, match="another user's"):
        external._read_secret(path, "eth0")
    with pytest.raises(ConfigError, match="at least 22 characters"):
        RunStore("a")
