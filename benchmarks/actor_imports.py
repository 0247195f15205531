"""What an actor's process costs before it acts: time and memory of each part that it loads.

    python benchmarks/actor_imports.py --agent sac --env gymnasium:Pendulum-v1

A new interpreter, with one core as an actor has it, loads the parts in this order; a row is what a part adds. "Own
MB" is memory of this process alone (USS: what one more actor costs), "MB" has in it what processes share (RSS). CPU
seconds say more than seconds where the machine is busy. Linux only; without the extra ``reverb`` its row is left out.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
NEEDLESS = ("rlax", "optax", "distrax", "tensorflow_probability", "chex", "matplotlib", "rich", "ray")
"""What no actor should load."""


class Used(NamedTuple):
    """What a process has used so far: seconds since it began, CPU seconds, modules, memory in 10^6 bytes."""

    seconds: float
    cpu_seconds: float
    modules: int
    own_mb: float
    mb: float


def look() -> Used:
    """What this process has used so far."""
    own = shared = 0
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty"):
            own += int(rest.split()[0])
        elif name.startswith("Shared_"):
            shared += int(rest.split()[0])
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    kib = 1024 / 1e6
    return Used(seconds, time.process_time(), len(sys.modules), own * kib, (own + shared) * kib)


def load(agent: str, environment: str) -> dict[str, Used]:
    """Loads in this process what an actor loads; what it had used after each part."""

    def make_environment() -> None:
        from agentkit import envs

        kept.append(envs.make(environment, seed=0))

    def of(*modules: str) -> Callable[[], object]:
        return lambda: [importlib.import_module(name) for name in modules]

    parts: dict[str, Callable[[], object]] = {
        "python": lambda: None,
        "jax": of("jax"),
        "reverb, tensorflow": of("agentkit.replay.reverb.replay"),
        "haiku": of("haiku"),
        "agentkit": of("agentkit.experiment.launch.actor", f"agentkit.agents.{agent}"),
        "environment": make_environment,
    }
    if importlib.util.find_spec("reverb") is None:
        del parts["reverb, tensorflow"]
    kept: list[object] = []
    found = {}
    for name, part in parts.items():
        part()
        found[name] = look()
    return found


def measure(agent: str, environment: str) -> tuple[dict[str, Used], list[str]]:
    """The same in a new process, and what it has loaded in vain."""
    from agentkit.distributed.program import ONE_CORE

    process = subprocess.run(
        [sys.executable, __file__, "--agent", agent, "--env", environment, "--child"],
        env={**os.environ, **ONE_CORE, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=600,
    )
    found = json.loads(process.stdout.splitlines()[-1])
    return {name: Used(*values) for name, values in found["used"].items()}, found["needless"]


def table(used: dict[str, Used]) -> str:
    """A row for each part, and their sum."""
    rows = ["| part | CPU seconds | seconds | own MB | MB | modules |", "|---|---|---|---|---|---|"]

    def row(name: str, values: Sequence[float]) -> str:
        seconds, cpu_seconds, modules, own_mb, mb = values
        return f"| {name} | {cpu_seconds:.2f} | {seconds:.2f} | {own_mb:.0f} | {mb:.0f} | {modules:,.0f} |"

    before = Used(0.0, 0.0, 0, 0.0, 0.0)
    for name, after in used.items():
        rows.append(row(name, [b - a for a, b in zip(before, after, strict=True)]))
        before = after
    return "\n".join([*rows, row("all", before)])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--env", default="agentkit:catch")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        used = load(arguments.agent, arguments.env)
        print(json.dumps({"used": used, "needless": [name for name in NEEDLESS if name in sys.modules]}))
        return
    used, needless = measure(arguments.agent, arguments.env)
    print(table(used))
    print(f"Loaded in vain: {', '.join(needless) or 'nothing'}")


if __name__ == "__main__":
    main()
