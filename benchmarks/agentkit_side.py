"""One run of agentkit: ``python agentkit_side.py JOB``; see compare_sb3.py."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import sys
import time
from collections import defaultdict
from typing import Any

from step_clock import StepClock


class PartTimer:
    """Attributes wall time to parts: each moment goes to the innermost part that is running."""

    def __init__(self) -> None:
        self._stack = ["rest"]
        self._since = 0.0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.window: dict[str, float] = {}

    def on_window(self, begins: bool) -> None:
        """For `StepClock`: counts from zero as the window begins, keeps the result as it ends."""
        self._switch()
        if begins:
            self._seconds.clear()
        else:
            self.window = dict(self._seconds)

    def _switch(self) -> None:
        now = time.perf_counter()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now

    def wrap(self, owner: type, method: str, part: str, after: Any = None) -> None:
        """Makes calls of a class's method count as `part`; `after` is called with self at their end."""
        original = getattr(owner, method)

        @functools.wraps(original)
        def timed(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._stack.append(part)
            try:
                result = original(this, *args, **kwargs)
                if after is not None:
                    after(this)
                return result
            finally:
                self._switch()
                self._stack.pop()

        setattr(owner, method, timed)


def time_parts(wait: bool) -> PartTimer:
    """Puts a timer around the parts of a run; with `wait` each update ends before the next part begins."""
    import jax

    from agentkit.actors import PolicyActor
    from agentkit.adders import NStepAdder
    from agentkit.datasets import ReplayDataset
    from agentkit.envs.resumable import ResumableEnvironment
    from agentkit.learning import Learner

    timer = PartTimer()
    timer.wrap(ResumableEnvironment, "step", "environment")
    timer.wrap(ResumableEnvironment, "reset", "environment")
    timer.wrap(PolicyActor, "select_action", "acting")
    timer.wrap(NStepAdder, "add", "adding")
    timer.wrap(NStepAdder, "add_first", "adding")
    timer.wrap(ReplayDataset, "__next__", "sampling")
    after = (lambda learner: jax.block_until_ready(learner.state)) if wait else None
    timer.wrap(Learner, "step", "update", after)
    return timer


def main(job: dict[str, Any]) -> None:
    start = time.perf_counter()
    import agentkit
    from agentkit import envs
    from agentkit.agents import registry
    from agentkit.wrappers.base import EnvironmentWrapper

    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in job["settings"].items()}
    agent = registry.make(job["workload"], settings)
    # All that the run would load later, so that the import's cost is the whole of it.
    for module in ("agentkit.experiment", "agentkit.envs.gymnasium", "agentkit.losses"):
        if module != "agentkit.losses" or job["workload"] == "dqn":
            importlib.import_module(module)
    import_seconds = time.perf_counter() - start

    timer = None if job["parts"] is None else time_parts(wait=job["parts"] == "one at a time")
    clock = StepClock(job, None if timer is None else timer.on_window)

    class Counted(EnvironmentWrapper):
        def reset(self) -> Any:
            clock.num_episodes += 1
            return self._environment.reset()

        def step(self, action: Any) -> Any:
            clock.tick()
            return self._environment.step(action)

    def make_environment(seed: int) -> Any:
        return envs.make(f"gymnasium:{job['environment']}", seed=seed, wrappers=[Counted])

    experiment = agentkit.ExperimentConfig(
        agent, make_environment, num_steps=job["last"], seed=job["seed"], evaluation_period=0
    )
    result = agentkit.run(experiment)
    if timer is not None:
        print("parts", json.dumps(timer.window))
    packages = ("jax", "jaxlib", "dm-haiku", "optax", "rlax", "gymnasium", "mujoco", "numpy")
    versions = {package: importlib.metadata.version(package) for package in packages}
    versions["agentkit"] = agentkit.__version__
    clock.report(import_seconds=import_seconds, num_updates=result.updates, versions=versions)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
