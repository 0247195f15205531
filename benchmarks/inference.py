"""Actions per second and latency of N actors that compute by themselves, and of N that ask one inference server.

Run alone on the machine: ``python benchmarks/inference.py``. Each actor is a process that asks for one action after
the other, on observations of 64 numbers, and does nothing else: no environment, no replay. The policies are DQN's,
epsilon-greedy; actors have a core each and the server has as many as there are. Ratios are served / local.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np

from agentkit import specs
from agentkit.distributed.program import ONE_CORE

NETWORKS = {"small": (64, 64), "large": (1024, 1024, 1024)}
RUN_ID = "benchmark"
OBSERVATION = specs.Array((64,), np.float32)
SCALAR = specs.Array((), np.float32)
SPEC = specs.EnvironmentSpec(OBSERVATION, specs.DiscreteArray(8), SCALAR, SCALAR)
NUM_WARM = 50


class Fixed:
    """Parameters as actors and servers hold them, on the device. They never change."""

    version, age_seconds = 0, 0.0

    def __init__(self, params: Any):
        self.params = params

    def update(self, wait: bool = False) -> None:
        pass


def make_policy(network: str) -> tuple[Any, Fixed]:
    import jax

    from agentkit.agents import dqn

    agent = dqn.make_agent(dqn.Config(hidden_sizes=NETWORKS[network]))
    networks = agent.make_networks(SPEC)
    return agent.make_policy(networks), Fixed(networks.init(jax.random.PRNGKey(0)))


def serve(network: str) -> None:
    """The server's process; it ends with its input."""
    import threading

    from agentkit.actors import InferenceServer

    policy, client = make_policy(network)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with InferenceServer(policy, SPEC, client, RUN_ID) as server:
        print(json.dumps(server.address), flush=True)
        while not ended.is_set():
            server.serve(0.2)
        print(json.dumps(server.num_requests / max(server.num_batches, 1)), flush=True)


def act(network: str, seed: int, address: str) -> None:
    """An actor's process: reads for how many seconds to act, from when on."""
    if address:
        from agentkit.actors import RemoteActor

        actor: Any = RemoteActor(lambda: address, RUN_ID, SPEC, seed=seed)
    else:
        import jax

        from agentkit.actors import PolicyActor

        actor = PolicyActor(make_policy(network)[0], jax.random.PRNGKey(seed), make_policy(network)[1])
    observations = np.random.default_rng(seed).standard_normal((64, 64), np.float32)
    for i in range(NUM_WARM):
        actor.select_action(observations[i % 64])
    print(json.dumps("ready"), flush=True)
    start, seconds = json.loads(sys.stdin.readline())
    time.sleep(max(start - time.time(), 0.0))
    times = [time.perf_counter()]
    while times[-1] - times[0] < seconds:
        actor.select_action(observations[len(times) % 64])
        times.append(time.perf_counter())
    latencies = np.diff(times)
    rows = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    own = sum(int(row.split()[1]) for row in rows if row.startswith(("Private_Clean", "Private_Dirty")))
    print(json.dumps([len(latencies) / (times[-1] - times[0]), *np.percentile(latencies, [50, 99]), own / 1024]))


def start(*words: Any, cores: int) -> subprocess.Popen[str]:
    environment = {**os.environ, **ONE_CORE, "NPROC": str(cores), "OMP_NUM_THREADS": str(cores)}
    command = [sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def tell(process: subprocess.Popen[str], value: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value) + "\n")
    process.stdin.flush()


def measure(network: str, num_actors: int, seconds: float, served: bool) -> dict[str, float]:
    """Actions a second of all actors together; latencies, milliseconds; memory of one actor, MiB."""
    server = start("serve", network, cores=len(os.sched_getaffinity(0))) if served else None
    processes = [] if server is None else [server]
    try:
        address = hear(server) if server is not None else ""
        actors = [start("act", network, seed, address, cores=1) for seed in range(num_actors)]
        processes += actors
        for actor in actors:
            assert hear(actor) == "ready"
        at = time.time() + 0.5
        for actor in actors:
            tell(actor, [at, seconds])
        rows = np.array([hear(actor) for actor in actors])
        found = {
            "actions": rows[:, 0].sum(),
            "p50_ms": 1e3 * np.median(rows[:, 1]),
            "p99_ms": 1e3 * rows[:, 2].max(),
            "mebibytes": np.median(rows[:, 3]),
            "batch": 1.0,
        }
        if server is not None:
            assert server.stdin is not None
            server.stdin.close()
            found["batch"] = hear(server)
        return found
    finally:
        for process in processes:
            process.kill()
            process.wait(30.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}")
    columns = "network actors  local/s served/s ratio  local ms served ms ratio  p99 ratio batch  MiB/actor"
    print(columns)
    for network in NETWORKS:
        for num_actors in options.actors:
            local, served = (measure(network, num_actors, options.seconds, kind) for kind in (False, True))
            print(
                f"{network:<7} {num_actors:>6} {local['actions']:>8.0f} {served['actions']:>8.0f} "
                f"{served['actions'] / local['actions']:>5.2f} {local['p50_ms']:>9.2f} {served['p50_ms']:>9.2f} "
                f"{served['p50_ms'] / local['p50_ms']:>5.2f} {served['p99_ms'] / local['p99_ms']:>10.2f} "
                f"{served['batch']:>5.1f}  {local['mebibytes']:.0f} -> {served['mebibytes']:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["act"]:
        act(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
