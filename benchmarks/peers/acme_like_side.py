"""One run of a plain Acme-like agent: ``python acme_like_side.py JOB`` on the Reverb stack.

dm-acme itself cannot be installed beside a current stack (its newest release needs dm-launchpad, which has no
wheel for Python 3.11, and the old gym). So this is what its `run_experiment` does in one process, written for the
benchmark part by part; `acme_like_loop.py` and `acme_like_updates.py` name the file of Acme that each part follows.

* acme/jax/experiments/run_experiment.py: server, client, dataset, learner, adder, actor, loop; no evaluation, no
  checkpoints, so nothing but the training is timed.
* acme/environment_loop.py: `run`.
* acme/wrappers/{gym_wrapper,canonical_spec,single_precision}.py: `Environment`, in one class, which costs less.

Acme learns about once a step, not exactly: its limiter lets updates run up to a tenth of the minimum size ahead
(100 updates at 1,000), and its samplers hold back some dozens. `PacedClock` says whether it did so in the window.
"""

from __future__ import annotations

import importlib.metadata
import json
import operator
import os
import sys
import time
from typing import Any

from step_clock import StepClock

SLACK = 200  # updates by which a window may differ: a hundred ahead, and what the samplers hold


class PacedClock(StepClock):
    """A `StepClock` that also reads the number of updates as the window begins and ends."""

    def __init__(self, job: dict[str, Any]):
        """See `StepClock`."""
        super().__init__(job)
        self.learner: Any = None
        self._updates: dict[str, int] = {}

    def tick(self, slots: int = 1, steps: int | None = None) -> None:
        """See `StepClock`."""
        super().tick(slots, steps)
        for name in ("first", "last"):
            if name in self._read and name not in self._updates:
                self._updates[name] = self.learner.num_updates

    def updates_owed(self) -> tuple[float, float]:
        """See `StepClock`; as far from it as Acme's limiter allows."""
        owed, slack = super().updates_owed()
        return owed, slack + SLACK

    def check_pace(self) -> None:
        """Raises RuntimeError where the window had not about as many updates as it should."""
        expected = self._job["updates_per_step"] * (self._job["last"] - self._job["first"])
        found = self._updates["last"] - self._updates["first"]
        if abs(found - expected) > SLACK:
            raise RuntimeError(f"Expected {expected:g} updates in the window (within {SLACK}), found {found}.")


def make_environment(job: dict[str, Any], clock: StepClock) -> Any:
    """The environment as dm_env, with float32 values and actions in [-1, 1]; it ticks the clock."""
    import dm_env
    import gymnasium
    import numpy as np

    class Environment(dm_env.Environment):
        def __init__(self) -> None:
            # Without gymnasium's checker, as the other sides.
            self._environment = gymnasium.make(job["environment"], disable_env_checker=True)
            self._seed: int | None = job["seed"]
            self.discrete = isinstance(self._environment.action_space, gymnasium.spaces.Discrete)
            if not self.discrete:
                low, high = self._environment.action_space.low, self._environment.action_space.high
                self._scale, self._offset = (high - low) / 2, (high + low) / 2

        def reset(self) -> dm_env.TimeStep:
            clock.num_episodes += 1
            observation, _ = self._environment.reset(seed=self._seed)
            self._seed = None
            return dm_env.restart(np.asarray(observation, np.float32))

        def step(self, action: Any) -> dm_env.TimeStep:
            clock.tick()
            action = int(action) if self.discrete else np.clip(action, -1, 1) * self._scale + self._offset
            observation, reward, ended, truncated, _ = self._environment.step(action)
            kind = dm_env.StepType.LAST if ended or truncated else dm_env.StepType.MID
            discount = np.float32(0.0 if ended else 1.0)
            return dm_env.TimeStep(kind, np.float32(reward), discount, np.asarray(observation, np.float32))

        def observation_spec(self) -> Any:
            return dm_env.specs.Array(self._environment.observation_space.shape, np.float32)

        def action_spec(self) -> Any:
            space = self._environment.action_space
            if self.discrete:
                return dm_env.specs.DiscreteArray(int(space.n), np.int32)
            return dm_env.specs.Array(space.shape, np.float32)

    return Environment()


def run(environment: Any, actor: Any, is_done: Any) -> list[float]:
    """Episodes until `is_done()`, timed and summed as Acme does; the returns of those that ended."""
    import numpy as np
    import tree

    returns: list[float] = []
    while not is_done():
        action_seconds, step_seconds = [], []
        episode_return: Any = np.zeros((), np.float32)
        timestep = environment.reset()
        actor.actor.observe_first(timestep)
        while not timestep.last() and not is_done():
            start = time.time()
            action = actor.actor.select_action(timestep.observation)
            action_seconds.append(time.time() - start)
            start = time.time()
            timestep = environment.step(action)
            step_seconds.append(time.time() - start)
            actor.actor.observe(action, timestep)
            actor.update()
            episode_return = tree.map_structure(operator.iadd, episode_return, timestep.reward)
        if timestep.last():
            returns.append(float(episode_return))
            if len(returns) % 10 == 0:
                print(f"[actor] return = {np.mean(returns[-10:]):.1f}", file=sys.stderr)
    return returns


def main(job: dict[str, Any]) -> None:
    start = time.perf_counter()
    import acme_like_loop as parts
    import acme_like_r2d2 as sequences
    import acme_like_updates as updates
    import gymnasium
    import jax
    import jax.numpy as jnp
    import reverb
    import tensorflow as tf

    import_seconds = time.perf_counter() - start
    del gymnasium  # imported here for its time
    settings = job["settings"]
    clock = PacedClock(job)
    environment = make_environment(job, clock)
    observation, action = environment.observation_spec(), environment.action_spec()
    size = action.num_values if environment.discrete else action.shape[0]
    make = sequences.r2d2 if job["algorithm"] == "r2d2" else updates.ALGORITHMS[job["algorithm"]]
    algorithm = make(settings, jnp.zeros((1, *observation.shape)), size)
    if job["algorithm"] == "r2d2":
        signature = sequences.signature(settings, observation)
        steps_per_item = sequences.steps_per_item(settings, job["episode_length"])
    else:
        specs = (observation.shape, observation.dtype), (action.shape, action.dtype), ((), "float32"), ((), "float32")
        fields, names = [*specs, specs[0]], updates.Transition._fields
        signature = updates.Transition(*(tf.TensorSpec(*spec, name) for spec, name in zip(fields, names, strict=True)))
        steps_per_item = 1

    updates_per_item = job["updates_per_step"] * steps_per_item
    min_size = round(job["learning_starts"] / steps_per_item)
    table, sample_size = parts.make_table(settings, updates_per_item, min_size, signature)
    server = reverb.Server([table], port=None)
    client = reverb.Client(f"localhost:{server.port}")
    dataset = parts.Prefetch(parts.make_dataset(client.server_address, settings["batch_size"]), jax.devices()[0])
    learner_key, actor_key = jax.random.split(jax.random.PRNGKey(job["seed"]))
    cpu = jax.devices("cpu")[0]
    if job["algorithm"] == "r2d2":
        learner = sequences.PriorityLearner(algorithm, dataset, learner_key, client)
        adder = sequences.SequenceAdder(client, sequences.sequence_length(settings), settings["sequence_period"])
        variables = parts.VariableClient(learner.get_variables, cpu)
        start = sequences.initial_state(settings, 1)
        actor = sequences.RecurrentActor(algorithm, actor_key, variables, adder, start)
    else:
        learner = parts.Learner(algorithm, dataset, learner_key)
        adder = parts.Adder(client, settings.get("n_step", 1), settings["discount"])
        actor = parts.Actor(algorithm, actor_key, parts.VariableClient(learner.get_variables, cpu), adder)
    clock.learner = learner
    actor = parts.LearningActor(actor, learner, dataset, table, sample_size)
    returns = run(environment, actor, lambda: clock.num_steps >= job["last"])
    clock.check_pace()
    print("returns", json.dumps(returns[-20:]))
    packages = ("jax", "jaxlib", "dm-haiku", "optax", "rlax", "dm-reverb", "gymnasium", "mujoco", "numpy")
    versions = {package: importlib.metadata.version(package) for package in packages}
    clock.report(import_seconds=import_seconds, num_updates=learner.num_updates, versions=versions)
    os._exit(0)  # What was measured is printed. Threads that wait in TensorFlow sometimes abort an orderly end.


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
