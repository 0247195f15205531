"""One run of agentkit: ``python agentkit_side.py JOB``; see step_clock.py."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from step_clock import StepClock


def make_environment(job: dict[str, Any], clock: StepClock) -> Any:
    """What `ExperimentConfig` takes as environment, with the clock in it."""
    from agentkit import envs

    name, batched = job["agentkit_environment"], job["num_envs"] > 1

    def tick(slots: int = 1, steps: int | None = None) -> None:
        before = clock.ended
        clock.tick(slots, steps)
        if clock.ended and not before:
            signal.raise_signal(signal.SIGINT)  # Stops the run after this step, as Ctrl-C does.

    if name.startswith("envpool:"):
        count_pool(clock, tick)
        if job["pool_settings"]:
            return lambda seed: envs.make(name, seed=seed, wrappers=[channels_last()], **job["pool_settings"])
    else:
        count_gymnasium(clock, tick, batched)
    return name


def count_gymnasium(clock: StepClock, tick: Callable[..., None], batched: bool) -> None:
    """Makes gymnasium's environments tell of their steps, where the peers' do."""
    import gymnasium

    class Counted(gymnasium.Wrapper):
        begun = False

        def reset(self, **kwargs: Any) -> Any:
            clock.num_episodes += 1
            if batched and self.begun:  # The call that would have been a step.
                tick(1, 0)
            self.begun = True
            return self.env.reset(**kwargs)

        def step(self, action: Any) -> Any:
            tick()
            return self.env.step(action)

    original = gymnasium.make
    gymnasium.make = lambda *args, **kwargs: Counted(original(*args, **kwargs))  # type: ignore[assignment]


def count_pool(clock: StepClock, tick: Callable[..., None]) -> None:
    """Makes EnvPool's batches tell of their steps; those that have ended are only reset by the next call."""
    from agentkit.envs.envpool import EnvPoolEnvironment

    original, ended = EnvPoolEnvironment.step, 0

    @functools.wraps(original)
    def step(this: Any, actions: Any) -> Any:
        nonlocal ended
        tick(this.num_envs, this.num_envs - ended)
        timestep = original(this, actions)
        ended = int((timestep.step_type == 2).sum())
        clock.num_episodes += ended
        return timestep

    EnvPoolEnvironment.step = step  # type: ignore[method-assign]


def channels_last() -> Any:
    """A wrapper that turns EnvPool's frames ``[N, 4, 84, 84]`` into ``[N, 84, 84, 4]``, as agentkit's networks take."""
    import numpy as np

    from agentkit import specs
    from agentkit.wrappers.base import EnvironmentWrapper

    class ChannelsLast(EnvironmentWrapper):
        works_on_batches = True

        def _turn(self, timestep: Any) -> Any:
            return timestep._replace(observation=np.ascontiguousarray(np.moveaxis(timestep.observation, 1, -1)))

        def reset(self) -> Any:
            return self._turn(self._environment.reset())

        def step(self, action: Any) -> Any:
            return self._turn(self._environment.step(action))

        def observation_spec(self) -> Any:
            channels, height, width = self._environment.observation_spec().shape
            return specs.BoundedArray((height, width, channels), np.uint8, 0, 255, "frames")

    return ChannelsLast


def main(job: dict[str, Any]) -> None:
    """Runs it."""
    start = time.perf_counter()
    import agentkit
    from agentkit.agents import registry
    from agentkit.learning import Linear

    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in job["settings"].items()}
    if "epsilon_steps" in settings:  # As the other sides name it.
        first, last, duration = (settings.pop(f"epsilon_{name}") for name in ("start", "end", "steps"))
        settings["epsilon"] = Linear(first, last, duration)
    agent = registry.make(job["algorithm"], settings)
    # All that the run would load later, so that the import's cost is the whole of it.
    simulator = job["agentkit_environment"].partition(":")[0]
    modules = ["agentkit.experiment", f"agentkit.envs.{simulator}"]
    if job["algorithm"] != "sac":
        modules.append("agentkit.losses.value")  # With rlax, as all of them.
    if job["replay"] == "reverb":
        modules.append("agentkit.replay.reverb.replay")
    for module in modules:
        importlib.import_module(module)
    import_seconds = time.perf_counter() - start

    clock = StepClock(job)
    experiment = agentkit.ExperimentConfig(
        agent,
        make_environment(job, clock),
        num_steps=10**9,
        num_envs=job["num_envs"] if job["num_envs"] > 1 else None,
        seed=job["seed"],
        replay=job["replay"],
        evaluation_period=0,
        checkpoint_period=0,
    )
    result = agentkit.run(experiment)
    # An update of PPO is all gradient steps of an iteration.
    per_update = settings["num_epochs"] * settings["num_minibatches"] if job["algorithm"] == "ppo" else 1
    packages = ["jax", "jaxlib", "dm-haiku", "optax", "rlax", "numpy", simulator]
    packages += ["mujoco"] if simulator == "gymnasium" else []
    packages += ["dm-reverb", "tensorflow-cpu"] if job["replay"] == "reverb" else []
    versions = {package: importlib.metadata.version(package) for package in packages}
    versions["agentkit"] = agentkit.__version__
    clock.report(import_seconds=import_seconds, num_updates=result.updates * per_update, versions=versions)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
