"""Functions of nodes for test_ray.py; as a program, the driver that its tests stop and kill.

python ray_nodes.py FOLDER [ADDRESS]: runs two `stay` nodes on a private Ray, or on the cluster at ADDRESS.
"""

import contextlib
import json
import os
import pathlib
import signal
import sys
import threading

import numpy as np

from agentkit.experiment.launching.sharing.transports import make_publisher, make_source


def stay(context, folder):
    """Runs until it is told to stop, and saves then."""
    print(f"{context.name} lives", flush=True)
    context.ready(describe())
    steps = 0
    while not context.wait(0.02):
        steps += 1
        context.heartbeat(steps=steps)
    (pathlib.Path(folder) / f"{context.name}.saved").write_text(str(steps))


def describe():
    import ray

    return {
        "pid": os.getpid(),
        "machine": ray.get_runtime_context().get_node_id(),
        "main_thread": threading.current_thread() is threading.main_thread(),
        "marker": os.environ.get("RAY_NODES_MARKER"),
    }


def greet(context, others):
    """Puts what the nodes it depends on said, and its own place, into the run store."""
    context.store.put(f"greeting/{context.name}", {"others": others, "mine": describe()})


def bad_config(context):
    from agentkit.errors import ConfigError

    raise ConfigError("learning_rate must be positive, found -1.")


def publish_and_die(context):
    """Publishes, and is killed by -9 as soon as three readers have it; its next incarnation stays."""
    publisher = make_publisher(context, listen="all")
    publisher.publish(900 if context.incarnation else 1000, {"policy": {"w": np.full((64, 1024), 3.0)}})
    publisher.open()
    context.ready(publisher.endpoint)
    while not context.wait(0.05):
        values = context.store.status()["values"]
        if not context.incarnation and all(f"seen/{index}" in values for index in range(3)):
            os.kill(os.getpid(), signal.SIGKILL)


def read(context, index, endpoint, is_far):
    """Puts each (version, sum) that it reads into the run store; one that is far is not on the learner's machine."""
    far = {**endpoint, "host": "another", "node": "of no such name"}  # Else it learns where the learner really is.
    source = make_source(context, far if is_far else endpoint)
    version, seen = -1, []
    context.ready()
    while not context.wait(0.05):
        with contextlib.suppress(ConnectionError, TimeoutError):
            found = source.get(("policy",), newer_than=version)
            if found is not None:
                version = found.version
                seen.append([version, float(found.variables["policy"]["w"].sum())])
                context.store.put(f"seen/{index}", seen)


def main():
    from agentkit.distributed import Program, Role, Supervisor
    from agentkit.distributed.ray import RayEngine
    from agentkit.errors import ConfigError

    folder = pathlib.Path(sys.argv[1])
    program = Program("driver")
    program.add_role(Role("stay"))
    for _ in range(2):
        program.add_node("stay", stay, str(folder))
    try:
        engine = RayEngine(*sys.argv[2:])
    except ConfigError as error:
        print(f"ConfigError: {error}")
        return 3
    with Supervisor(program, engine, run_directory=folder) as supervisor:

        def on_tick(status):
            nodes = status["nodes"].values()
            if all(node["state"] == "ready" for node in nodes) and not (folder / "up").exists():
                pids = [status["values"][f"endpoint/stay-{index}"]["value"]["pid"] for index in (0, 1)]
                (folder / "up.tmp").write_text(json.dumps(pids))
                (folder / "up.tmp").rename(folder / "up")

        print(supervisor.run(on_tick), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
