"""The Ray engine, on a real cluster of two raylets and on a private Ray; and parameters there."""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from agentkit.distributed import Program, ProgramError, RestartPolicy, Role, Supervisor
from agentkit.distributed.ray import RayEngine
from tests.processes import is_alive

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))  # So that the nodes' processes can import it, too.
import ray_nodes  # noqa: E402

# Ray is not imported here: it would keep this process's mode. Each takes seconds, or starts the cluster, which does.
pytestmark = [pytest.mark.ray, pytest.mark.full]

QUICK = RestartPolicy(first_delay_seconds=0.05)


@pytest.fixture(scope="module")
def cluster():
    """Two raylets: "head", on which this process is, and "side". The same machine, but Ray thinks otherwise."""
    folder = tempfile.mkdtemp(prefix="ray-test-", dir="/tmp")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))  # Ray reads it once per process.
    os.environ["RAY_AUTH_MODE"] = "token"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)  # The address of this cluster is nobody else's business.
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # The other tests are busy.
        patch.setenv("RAY_health_check_period_ms", "500")  # A dead machine is noticed in 2 s, not in 15.
        patch.setenv("RAY_health_check_failure_threshold", "3")
        patch.setenv("RAY_health_check_initial_delay_ms", "500")
        from ray.cluster_utils import Cluster

        store = 100 << 20
        head = {"num_cpus": 3, "resources": {"head": 10}, "object_store_memory": store, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.add_node(num_cpus=3, resources={"side": 10}, object_store_memory=store)
        yield made
        made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def run(program, engine, folder, look=lambda status, supervisor: None, seconds=180.0):
    """Runs a program; `look` watches it and may stop it."""
    deadline = time.monotonic() + seconds

    with Supervisor(program, engine, run_directory=folder) as supervisor:

        def on_tick(status):
            assert time.monotonic() < deadline, json.dumps(status, indent=1)
            look(status, supervisor)

        reason = supervisor.run(on_tick, tick_seconds=0.1)
        return reason, supervisor.store.status()


def program_of(*nodes, **role):
    """A program of one `stay` role per place."""
    program = Program("test")
    for place in nodes:
        settings = {"resources": {place: 1}} | role
        program.add_role(Role(place, restart=QUICK, **settings))
    return program


def all_ready(status):
    return all(node["state"] == "ready" for node in status["nodes"].values())


def session(leader):
    """Names of the processes in the session of a driver, a private Ray's among them; except zombies."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(entry.name):
            try:
                if os.getsid(int(entry.name)) == leader:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
    return found


def ray_folders(pid):
    """The folders of the private Rays that a driver holds."""
    names = [os.readlink(entry) for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
    return {pathlib.Path(*pathlib.Path(name).parts[:3]) for name in names if name.startswith("/tmp/agentkit-ray-")}


def listening(leader):
    """Where the processes in a driver's session listen for TCP: (name of the process, address) of each port."""
    import ray  # noqa: F401 (brings psutil along)
    from psutil import CONN_LISTEN, NoSuchProcess, process_iter

    found = []
    for process in process_iter():
        with contextlib.suppress(ProcessLookupError, NoSuchProcess):  # It has just ended.
            if os.getsid(process.pid) == leader:
                sockets = process.net_connections("tcp")
                found += [(process.name(), each.laddr.ip) for each in sockets if each.status == CONN_LISTEN]
    return found


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.05)


# Where nodes run -----------------------------------------------------------------------------------


def test_nodes_run_on_both_machines_and_find_each_other(cluster, tmp_path):
    program = program_of("head", "side", environment={"RAY_NODES_MARKER": "from the role"})
    first = program.add_node("head", ray_nodes.stay, str(tmp_path))
    second = program.add_node("side", ray_nodes.stay, str(tmp_path))
    program.add_role(Role("guest", num_cpus=0.5))
    program.add_node("guest", ray_nodes.greet, [first, {"other": second}])

    def look(status, supervisor):
        if status["nodes"]["guest-0"]["state"] == "done":
            supervisor.store.stop("seen enough")

    reason, status = run(program, RayEngine(cluster.address), tmp_path, look)
    assert reason == "seen enough"
    one, other = status["values"]["greeting/guest-0"]["others"]
    assert one["machine"] != other["other"]["machine"]
    assert one["main_thread"] and one["marker"] == other["other"]["marker"] == "from the role"
    for name in ("head-0", "side-0"):
        assert (tmp_path / f"{name}.saved").is_file(), "stopped, not killed"
        assert f"{name} lives" in (tmp_path / "nodes" / f"{name}.log").read_text()


def test_what_no_machine_can_hold_is_refused_at_once(cluster, tmp_path):
    program = Program("test")
    program.add_role(Role("big", num_cpus=5, num_gpus=1))
    program.add_node("big", ray_nodes.stay, str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(ProgramError, match=r"'big', which asks for CPU 5, GPU 1\. The machines have: CPU 3, head 10"):
        run(program, RayEngine(cluster.address), tmp_path)
    assert time.monotonic() - begun < 30.0  # Ray itself would wait for ever.


def test_more_than_all_machines_hold_is_refused(cluster, tmp_path):
    program = program_of("head", num_cpus=1)
    for _ in range(7):
        program.add_node("head", ray_nodes.stay, str(tmp_path))
    with pytest.raises(ProgramError, match=r"CPU 6 in all\. This program's nodes hold 6 of them"):
        run(program, RayEngine(cluster.address), tmp_path)


# Faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["head", "side"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_node_whose_process_is_hit_is_restarted(cluster, tmp_path, place, number):
    # Test machines are busy: short only where it is what the test waits for.
    program = program_of(place, heartbeat_seconds=5.0 if number == signal.SIGSTOP else 60.0)
    program.add_node(place, ray_nodes.stay, str(tmp_path))
    pids, saved = [], []

    def look(status, supervisor):
        node = status["nodes"][f"{place}-0"]
        if node["state"] == "ready" and node["counts"].get("steps") and node["pid"] not in pids:
            pids.append(node["pid"])
            if len(pids) == 1:
                os.kill(node["pid"], number)
            else:
                saved.append((tmp_path / f"{place}-0.saved").is_file())
                supervisor.store.stop("restarted")

    reason, status = run(program, RayEngine(cluster.address), tmp_path, look)
    node = status["nodes"][f"{place}-0"]
    assert place == "side" or not any(is_alive(pid) for pid in pids)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 10.0)  # Another machine's go when Ray gets to it.
    assert (reason, len(pids)) == ("restarted", 2) and node["restarts"] >= 1
    expected = {
        signal.SIGKILL: "was killed by SIGKILL",
        signal.SIGSTOP: "gave no sign of life",
        signal.SIGTERM: "was told to stop by a signal from elsewhere",
    }
    assert expected[number] in node["last_error"]
    assert saved == [number == signal.SIGTERM] and (tmp_path / f"{place}-0.saved").is_file()


def test_a_lost_machine_is_survived(cluster, tmp_path):
    def add_machine():
        return cluster.add_node(num_cpus=5, object_store_memory=100 << 20)

    machine = add_machine()
    program = Program("test")
    program.add_role(Role("roomy", restart=QUICK, num_cpus=5, heartbeat_seconds=60.0))
    program.add_node("roomy", ray_nodes.stay, str(tmp_path))
    lost = []

    def look(status, supervisor):
        node = status["nodes"]["roomy-0"]
        if node["state"] == "ready" and not lost:
            lost.append(node["pid"])
            cluster.remove_node(machine, allow_graceful=False)
        elif node["state"] == "starting" and lost and len(lost) == 1:
            lost.append(add_machine())  # Until now no machine could hold it: it waits.
        elif node["state"] == "ready" and node["restarts"] == 1:
            supervisor.store.stop("back")

    reason, status = run(program, RayEngine(cluster.address), tmp_path, look)
    cluster.remove_node(lost[1])
    assert (reason, status["nodes"]["roomy-0"]["restarts"]) == ("back", 1)
    wait_until(lambda: not is_alive(lost[0]), 10.0)


def test_a_fault_that_no_restart_mends_ends_the_program(cluster, tmp_path):
    program = program_of("side")
    program.add_node("side", ray_nodes.bad_config)
    with pytest.raises(ProgramError, match="side-0 raised ConfigError: learning_rate must be positive"):
        run(program, RayEngine(cluster.address), tmp_path)
    assert "learning_rate" in (tmp_path / "nodes" / "side-0.log").read_text()


# The driver ----------------------------------------------------------------------------------------


def start_driver(folder, *arguments, **environment):
    command = [sys.executable, str(HERE / "ray_nodes.py"), str(folder), *arguments]
    variables = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), **environment}
    return subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for_nodes(folder):
    """The pids of a driver's nodes, once they are ready."""
    wait_until((folder / "up").exists, 180.0)
    pids = json.loads((folder / "up").read_text())
    assert len(pids) == 2 and all(is_alive(pid) for pid in pids)
    return pids


@pytest.mark.parametrize("on_cluster", [False, True])
def test_ctrl_c_stops_saves_and_leaves_nothing_behind(request, tmp_path, on_cluster):
    address = [request.getfixturevalue("cluster").address] if on_cluster else []
    driver = start_driver(tmp_path, *address)
    try:
        pids = wait_for_nodes(tmp_path)
        assert any("raylet" in name for name in session(driver.pid)) is not on_cluster
        folders = ray_folders(driver.pid)
        assert len(folders) == (0 if on_cluster else 1)
        if not on_cluster:  # Whoever may use a port of Ray's runs code.
            ports = listening(driver.pid)
            assert {"gcs_server", "raylet"} <= {name for name, _ in ports} and len(ports) >= 6, ports
            assert {address for _, address in ports} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, ports
        os.killpg(driver.pid, signal.SIGINT)  # A terminal sends it to the whole group.
        begun = time.monotonic()
        output, _ = driver.communicate(timeout=60.0)
        print(f"from Ctrl-C to the end: {time.monotonic() - begun:.1f} s")
    finally:
        driver.kill()
    assert (driver.returncode, output.strip()) == (0, "stopped by SIGINT")
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["stay-0.saved", "stay-1.saved"]
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 10.0)
    wait_until(lambda: not session(driver.pid), 10.0)
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("on_cluster", [False, True])
def test_nodes_do_not_outlive_a_driver_that_is_killed(request, tmp_path, on_cluster):
    address = [request.getfixturevalue("cluster").address] if on_cluster else []
    driver = start_driver(tmp_path, *address)
    try:
        pids = wait_for_nodes(tmp_path)
        folders = ray_folders(driver.pid)
    finally:
        driver.kill()
        driver.communicate(timeout=10.0)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 30.0)
    # Two of Ray's agents stay until they have missed the rest for a minute; they run nobody's code.
    wait_until(lambda: not [name for name in session(driver.pid) if "Agent" not in name], 30.0)
    for left in folders:  # The next private Ray's start would do it.
        shutil.rmtree(left, ignore_errors=True)


@pytest.mark.parametrize(
    ("token", "reason"), [("0" * 32, "the token here is the cluster's"), ("", "No Ray token found")]
)
def test_a_wrong_token_is_refused(cluster, tmp_path, token, reason):
    driver = start_driver(tmp_path, cluster.address, RAY_AUTH_TOKEN=token, HOME=str(tmp_path))
    output, _ = driver.communicate(timeout=120.0)
    assert driver.returncode == 3 and "ConfigError" in output and reason in output


# Parameters ----------------------------------------------------------------------------------------


def test_parameters_reach_every_machine_also_those_of_a_learner_that_was_killed(cluster, tmp_path):
    """By memory on its own machine, over the wire on another; kill -9 of the learner in between."""
    program = Program("test")
    program.add_role(Role("learner", resources={"side": 1}, restart=RestartPolicy(first_delay_seconds=0.5)))
    learner = program.add_node("learner", ray_nodes.publish_and_die)
    for index, (place, is_far) in enumerate((("head", False), ("head", True), ("side", True))):
        program.add_role(Role(f"reader_{index}", resources={place: 1}))
        program.add_node(f"reader_{index}", ray_nodes.read, index, learner, is_far)

    def look(status, supervisor):
        if all(len(status["values"].get(f"seen/{index}", [])) == 2 for index in range(3)):
            supervisor.store.stop("seen")

    reason, status = run(program, RayEngine(cluster.address), tmp_path, look)
    total = 3.0 * 64 * 1024
    assert reason == "seen" and status["nodes"]["learner-0"]["restarts"] == 1
    for index in range(3):
        assert status["values"][f"seen/{index}"] == [[1000, total], [900, total]]
