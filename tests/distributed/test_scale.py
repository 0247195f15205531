"""A role that grows and shrinks: with nodes that are not running just then, down to none, and up again."""

import threading

import pytest

from agentkit.distributed import Program, RestartPolicy, Role, RunStore, Supervisor
from agentkit.errors import ConfigError, UnknownNameError

pytestmark = pytest.mark.both_stacks


class Running:
    """A node that ends when it is told to."""

    pid = None

    def __init__(self):
        self.code = None

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 0

    def kill(self):
        self.code = -9

    def cpu_seconds(self):
        return None


class Engine:
    """Starts nothing; keeps what runs by name."""

    store_host = "127.0.0.1"

    def __init__(self):
        self.running = {}

    def start(self, node, role, run_address):
        self.running[node.name] = Running()
        return self.running[node.name]

    def close(self):
        pass

    def alive(self):
        return sorted(name for name, running in self.running.items() if running.code is None)


@pytest.fixture(name="supervisor")
def _supervisor():
    program = Program("test", [Role("actor", restart=RestartPolicy(first_delay_seconds=0.0)), Role("learner")])
    for _ in range(3):
        program.add_node("actor", print)
    program.add_node("learner", print)
    with Supervisor(program, Engine()) as supervisor:
        supervisor._poll()
        yield supervisor


def scale(supervisor, count):
    """As `agentkit scale` does; the supervisor then looks round until all that is due has been done."""
    supervisor.store.commands.put(("scale", {"role": "actor", "count": count}))
    for _ in range(3):
        supervisor._poll()
    return [name for name in supervisor._engine.alive() if name.startswith("actor")]


def test_a_node_that_waits_for_its_restart_is_not_started_again(supervisor):
    supervisor._engine.running["actor-2"].code = -9
    supervisor._poll()
    assert supervisor._nodes["actor-2"].state == "restarting"
    assert scale(supervisor, 2) == ["actor-0", "actor-1"]
    assert set(supervisor.store.status()["nodes"]) == {"actor-0", "actor-1", "learner-0"}
    assert scale(supervisor, 3) == ["actor-0", "actor-1", "actor-2"]
    assert scale(supervisor, 1) == ["actor-0"]


def test_a_role_without_nodes_grows_again(supervisor):
    assert scale(supervisor, 0) == []
    assert scale(supervisor, 4) == [f"actor-{index}" for index in range(4)]
    with pytest.raises(UnknownNameError, match="role with nodes 'evaluator'"):
        supervisor.scale("evaluator", 1)


@pytest.mark.parametrize("count", ["two", None, [2], float("nan"), float("inf"), -1])
def test_what_is_no_number_of_nodes_ends_nothing(supervisor, count):
    assert scale(supervisor, count) == ["actor-0", "actor-1", "actor-2"]


def test_a_node_of_a_name_that_was_there_before_is_not_ready_because_that_one_was(supervisor):
    for kind in ("endpoint", "error"):
        supervisor.store.put(f"{kind}/actor-2", {"incarnation": 0, "value": None})
    supervisor._poll()
    assert supervisor._nodes["actor-2"].state == "ready"
    scale(supervisor, 2)
    scale(supervisor, 3)
    assert supervisor._nodes["actor-2"].state == "starting"
    assert supervisor.store.get("error/actor-2") is None


def test_a_supervisor_that_cannot_begin_leaves_neither_engine_nor_store_open(tmp_path):
    closed = []
    engine = Engine()
    engine.close = lambda: closed.append(engine)
    with RunStore("01234567" * 4) as other, pytest.raises(ConfigError, match="cannot listen"):
        Supervisor(Program("test"), engine, store_port=int(other.address.rpartition(":")[2]))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        Supervisor(Program("test"), engine, run_directory=tmp_path / "file")
    assert closed == [engine, engine]
    assert not any(thread.name == "agentkit-run-store" for thread in threading.enumerate())
