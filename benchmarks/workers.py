"""Environment steps per second of environments in workers: beside one process, beside each other, beside the peers.

    python benchmarks/workers.py                                          # sleeping environments: 1 minute
    python benchmarks/workers.py --sb3-python PEERS/bin/python            # and HalfCheetah beside SB3 and gymnasium

Actions are drawn at random and nothing else runs: no policy, no replay. In "asleep" each of 16 environments sleeps
5 ms a step; "straggler" is the same with one that sleeps 50 ms; "cheetah" is gymnasium:HalfCheetah-v5. Sides take
turns, and each figure is the median of all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

NUM_ENVS = 16
NAME = "HalfCheetah-v5"
ROOT = pathlib.Path(__file__).resolve().parents[1]


class Rate(NamedTuple):
    """Environment steps a second, and the processor time of one in microseconds, all processes together.

    The second hardly depends on what else runs on the machine.
    """

    steps_per_second: float
    cpu_microseconds: float


def measure(step: Callable[[], int], seconds: float) -> Rate:
    """Measures a function that takes some environment steps and says how many."""
    for _ in range(3):
        step()
    start, used, count = time.perf_counter(), cpu_seconds(), 0
    while (passed := time.perf_counter() - start) < seconds:
        count += step()
    return Rate(count / passed, 1e6 * (cpu_seconds() - used) / count)


def cpu_seconds() -> float:
    """Returns the processor time of this process and all below it; SB3's workers are a server's children."""
    ticks, parents = {}, {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = entry.read_text().rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(words[1])
            ticks[int(entry.parent.name)] = int(words[11]) + int(words[12])
    mine = {os.getpid()}
    while below := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
        mine |= below
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def make_asleep(seed: int = 0, straggler: int = -1) -> Any:
    """Makes an environment that sleeps 5 ms at each step, or 50 ms if it is the straggler."""
    from agentkit.envs.catch import Catch

    class Asleep(Catch):
        """catch, as slow as a simulator of 200 steps a second."""

        pause = 0.05 if seed == straggler else 0.005

        def step(self, action: Any) -> Any:
            time.sleep(self.pause)
            return super().step(action)

    return Asleep(seed=seed)


def agentkit_rate(seconds: float, name: Any, **settings: Any) -> Rate:
    """Returns the rate of a batch of agentkit's, with an action drawn for each step of each environment."""
    from agentkit import envs
    from agentkit.testing.environment import sample_action

    environment = envs.make(name, seed=0, num_envs=NUM_ENVS, **settings)
    spec, rng = environment.action_spec(), np.random.default_rng(0)
    try:
        actions = np.stack([sample_action(spec, rng) for _ in range(NUM_ENVS)])
        if settings.get("ready") is None:
            environment.reset()

            def step() -> int:
                return int(np.count_nonzero(environment.step(actions).step_type))

        else:
            environment.async_reset()

            def step() -> int:
                numbers, timestep = environment.recv()
                environment.send(actions[numbers], numbers)
                return int(np.count_nonzero(timestep.step_type))

        return measure(step, seconds)
    finally:
        environment.close()


def batch_rate(environment: Any, actions: Any, seconds: float) -> Rate:
    """Returns the rate of another library's batch, which was reset and starts ended episodes anew; closes it."""

    def step() -> int:
        environment.step(actions)
        return NUM_ENVS

    rate = measure(step, seconds)
    environment.close()
    return rate


def gymnasium_rate(seconds: float) -> Rate:
    """Returns the rate of gymnasium's AsyncVectorEnv, which has a process for each environment."""
    import gymnasium

    environment = gymnasium.make_vec(NAME, NUM_ENVS, vectorization_mode="async")
    environment.reset(seed=0)
    return batch_rate(environment, environment.action_space.sample(), seconds)


def sb3_rate(seconds: float) -> Rate:
    """Returns the rate of Stable-Baselines3's SubprocVecEnv, which has a process for each environment."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    environment = make_vec_env(NAME, NUM_ENVS, vec_env_cls=SubprocVecEnv)
    environment.reset()
    return batch_rate(environment, np.stack([environment.action_space.sample() for _ in range(NUM_ENVS)]), seconds)


def straggling() -> Any:
    """Returns a maker of environments of which number 0 is the straggler."""
    import functools

    from agentkit.envs.resumable import episode_seed

    return functools.partial(make_asleep, straggler=episode_seed(0, 0))


SIDES: dict[str, Callable[[float], Rate]] = {
    "asleep, one process": lambda seconds: agentkit_rate(seconds, make_asleep),
    "asleep, 16 workers": lambda seconds: agentkit_rate(seconds, make_asleep, workers=16),
    "straggler, 16 workers": lambda seconds: agentkit_rate(seconds, straggling(), workers=16),
    "straggler, 16 workers, ready 8": lambda seconds: agentkit_rate(seconds, straggling(), workers=16, ready=8),
    "cheetah, one process": lambda seconds: agentkit_rate(seconds, f"gymnasium:{NAME}"),
    "cheetah, 2 workers": lambda seconds: agentkit_rate(seconds, f"gymnasium:{NAME}", workers=2),
    "cheetah, gymnasium AsyncVectorEnv": gymnasium_rate,
    "cheetah, SB3 SubprocVecEnv": sb3_rate,
}
RATIOS = (
    ("asleep, 16 workers", "asleep, one process"),
    ("straggler, 16 workers, ready 8", "straggler, 16 workers"),
    ("cheetah, 2 workers", "cheetah, one process"),
    ("cheetah, 2 workers", "cheetah, gymnasium AsyncVectorEnv"),
    ("cheetah, 2 workers", "cheetah, SB3 SubprocVecEnv"),
)


def main() -> None:
    """Measures all sides in turns, each in a process of its own, and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sb3-python", help="a Python with stable-baselines3, gymnasium and mujoco; else they are left out"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--only", default="", help="sides whose names begin so: asleep, straggler, cheetah")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=pathlib.Path, help="a JSON file for all figures")
    arguments = parser.parse_args()
    if arguments.side:
        print(*SIDES[arguments.side](arguments.seconds))
        return
    pythons = {name: sys.executable for name in SIDES if arguments.sb3_python or not name.startswith("cheetah")}
    pythons = {name: python for name, python in pythons.items() if name.startswith(arguments.only)}
    if arguments.sb3_python:
        pythons["cheetah, SB3 SubprocVecEnv"] = arguments.sb3_python
    found: dict[str, list[Rate]] = {name: [] for name in pythons}
    load = os.getloadavg()
    for _ in range(arguments.rounds):
        for name, python in pythons.items():
            command = [python, __file__, "--side", name, "--seconds", str(arguments.seconds)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
            output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            found[name].append(Rate(*map(float, output.split()[-2:])))
    medians = {name: Rate(*map(statistics.median, zip(*rates, strict=True))) for name, rates in found.items()}
    for name, (rate, cpu) in medians.items():
        rates = [each.steps_per_second for each in found[name]]
        print(f"{name:36} {rate:9,.0f} steps/s ({min(rates):,.0f} to {max(rates):,.0f}), {cpu:6,.0f} us of processor")
    ratios = {
        f"{one} / {other}": [mine / theirs for mine, theirs in zip(medians[one], medians[other], strict=True)]
        for one, other in RATIOS
        if one in found and other in found
    }
    for name, (rate, cpu) in ratios.items():
        print(f"{name}: {rate:.2f} times the steps, {cpu:.2f} times the processor time of a step")
    print(f"Cores: {os.cpu_count()}; load before and after: {load[0]:.1f}, {os.getloadavg()[0]:.1f}")
    if arguments.output is not None:
        record = {"steps_per_second": found, "ratios": ratios, "load": [load, os.getloadavg()], "cores": os.cpu_count()}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
