"""The parts of `acme_like_side.py` around the update, each written as dm-acme's file of that part has it.

| here | in dm-acme |
|---|---|
| `Adder` | acme/adders/reverb/base.py, transition.py: `NStepTransitionAdder` |
| `make_dataset` | acme/datasets/reverb.py: `make_reverb_dataset` |
| `Prefetch` | acme/jax/utils.py: `PrefetchIterator` around `device_put`; run_experiment.py gives it `buffer_size=1` |
| `make_table` | acme/agents/jax/sac/builder.py: `make_replay_tables`; run_experiment.py: `_disable_insert_blocking` |
| `Learner` | acme/agents/jax/{dqn,sac,d4pg}: `step` and `get_variables` |
| `VariableClient` | acme/jax/variable_utils.py |
| `Actor` | acme/agents/jax/actors.py: `GenericActor`, actor_core.py |
| `LearningActor` | acme/jax/experiments/run_experiment.py: `_LearningActor` |
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import dm_env
import jax
import numpy as np
import reverb
import tensorflow as tf
import tree
from acme_like_updates import Algorithm, Transition

TABLE = "priority_table"
TOLERANCE = 0.1  # samples_per_insert_tolerance_rate
NUM_SAMPLERS = 12
MAX_IN_FLIGHT_ITEMS = 5
WRITER_SECONDS = 60


def make_table(
    settings: dict[str, Any], updates_per_item: float, min_size: int, signature: Any
) -> tuple[reverb.Table, int]:
    """The table, whose limiter holds back samples but no inserts, and the samples that `LearningActor` waits for."""
    per_insert = settings["batch_size"] * updates_per_item
    exponent = settings.get("priority_exponent")
    error_buffer = min_size * TOLERANCE * per_insert
    limiter = reverb.rate_limiters.RateLimiter(
        samples_per_insert=per_insert,
        min_size_to_sample=min_size,
        min_diff=min_size * per_insert - error_buffer,
        max_diff=sys.float_info.max,
    )
    table = reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Uniform() if exponent is None else reverb.selectors.Prioritized(exponent),
        remover=reverb.selectors.Fifo(),
        max_size=settings["replay_size"],
        rate_limiter=limiter,
        signature=signature,
    )
    return table, max(1, int(error_buffer))


def make_dataset(address: str, batch_size: int) -> tf.data.Dataset:
    """Batches from 12 interleaved samplers, one of them prefetched."""

    def one(_: tf.Tensor) -> tf.data.Dataset:
        dataset = reverb.TrajectoryDataset.from_table_signature(
            server_address=address, table=TABLE, max_in_flight_samples_per_worker=2 * batch_size
        )
        return dataset.batch(batch_size, drop_remainder=True)

    dataset = tf.data.Dataset.range(NUM_SAMPLERS).interleave(
        map_func=one, cycle_length=NUM_SAMPLERS, num_parallel_calls=NUM_SAMPLERS, deterministic=False
    )
    return dataset.prefetch(1)


class Prefetch:
    """Fetches, in a thread, one batch in advance, as arrays of a device."""

    def __init__(self, dataset: tf.data.Dataset, device: jax.Device):
        """Starts the thread."""
        self._buffer: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._dataset = dataset
        self._device = device
        threading.Thread(target=self._produce, daemon=True).start()

    def _produce(self) -> None:
        try:
            for sample in self._dataset.as_numpy_iterator():
                # The keys, which JAX would cut to 32 bits, stay behind (`keep_key_on_host`).
                info = jax.device_put(sample.info._replace(key=()), self._device)._replace(key=sample.info.key)
                self._buffer.put(reverb.ReplaySample(info, jax.device_put(sample.data, self._device)))
        except Exception as error:
            self._buffer.put(error)

    def ready(self) -> bool:
        """Whether a batch waits."""
        return not self._buffer.empty()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch."""
        sample = self._buffer.get()
        if isinstance(sample, Exception):
            raise sample
        return sample


class Adder:
    """N-step transitions through a `TrajectoryWriter`; each item is flushed when it is created."""

    def __init__(self, client: reverb.Client, n_step: int, discount: float):
        """Makes one."""
        self._client = client
        self._n_step = n_step
        self._discount = np.float32(discount)
        self._made: reverb.TrajectoryWriter | None = None
        self._made_at = 0.0
        self._first, self._last = 0, 0

    @property
    def _writer(self) -> reverb.TrajectoryWriter:
        if self._made is None:
            self._made = self._client.trajectory_writer(num_keep_alive_refs=self._n_step + 1, validate_items=True)
            self._made_at = time.time()
        return self._made

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode."""
        self._writer.append(
            {"observation": timestep.observation, "start_of_episode": timestep.first()}, partial_step=True
        )

    def add(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        """Adds an action and where it led, and creates the item that is complete with it."""
        if self._writer.episode_steps >= self._n_step:
            self._first += 1
        self._last += 1
        step = {"action": action, "reward": next_timestep.reward, "discount": next_timestep.discount}
        self._writer.append(step)
        self._writer.append(
            {"observation": next_timestep.observation, "start_of_episode": next_timestep.first()}, partial_step=True
        )
        self._write()
        if next_timestep.last():
            self._writer.append(tree.map_structure(np.zeros_like, step))
            self._first += 1
            while self._first < self._last:
                self._write()
                self._first += 1
            self._reset()

    def _write(self) -> None:
        first, last, history = self._first, self._last, self._writer.history
        state, action = history["observation"][first], history["action"][first]
        next_state = history["observation"][last]
        rewards, discounts = (history[name][first:last].numpy() for name in ("reward", "discount"))
        total, factor = self._sum(rewards, discounts)
        self._writer.append(
            {"n_step_return": total, "total_discount": factor}, partial_step=self._writer.episode_steps <= last
        )
        history = self._writer.history
        total, factor = history["n_step_return"][-1], history["total_discount"][-1]
        transition = Transition(state, action, total, factor, next_state)
        self._writer.create_item(table=TABLE, priority=1.0, trajectory=transition)
        self._writer.flush(MAX_IN_FLIGHT_ITEMS)

    def _sum(self, rewards: np.ndarray, discounts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        factor, total = np.copy(discounts[0]), np.copy(rewards[0])
        for reward, discount in zip(rewards[1:], discounts[1:], strict=True):
            factor *= self._discount
            total += reward * factor
            factor *= discount
        return total, factor

    def _reset(self) -> None:
        self._writer.end_episode(clear_buffers=True)
        if time.time() - self._made_at >= WRITER_SECONDS:
            self._made = None
        self._first, self._last = 0, 0


class Learner:
    """Calls the jitted step on the next batch."""

    def __init__(self, algorithm: Algorithm, dataset: Prefetch, key: jax.Array):
        """Makes the first state."""
        self._algorithm = algorithm
        self._dataset = dataset
        self._step = jax.jit(algorithm.step)
        self._state = algorithm.init(key)
        self._logged = time.time()
        self.num_updates = 0

    def step(self) -> None:
        """One update."""
        sample = next(self._dataset)
        self._state, metrics = self._step(self._state, Transition(*sample.data))
        if self._algorithm.fetches:
            metrics = jax.device_get(metrics)
        self.num_updates += 1
        if time.time() - self._logged >= 1.0:  # Acme's default logger drops what comes within a second, unread.
            self._logged = time.time()
            line = {name: float(value) for name, value in jax.device_get(metrics).items()}
            print(f"[learner] updates = {self.num_updates} {line}", file=sys.stderr)

    def get_variables(self) -> Any:
        """The policy's parameters."""
        params = self._algorithm.policy_params(self._state)
        return jax.device_get(params) if self._algorithm.fetches else params


class VariableClient:
    """Fetches parameters in a thread when told to."""

    def __init__(self, fetch: Callable[[], Any], device: jax.Device):
        """Takes where to fetch from and where to put them."""
        self._fetch = fetch
        self._device = device
        self._executor = futures.ThreadPoolExecutor(max_workers=1)
        self._future: futures.Future | None = None
        self._params: Any = None

    def update(self) -> None:
        """Asks for the newest, where no earlier request is under way."""
        if self._future is not None and not self._future.done():
            return
        self._future = self._executor.submit(self._fetch)
        self._future.add_done_callback(lambda future: self._take(future.result()))

    def _take(self, params: Any) -> None:
        self._params = jax.device_put(params, self._device)

    @property
    def params(self) -> Any:
        """Those fetched last; waits for the first."""
        if self._params is None:
            self._take(self._fetch())
        return self._params


class Actor:
    """A jitted feed-forward policy, whose state (key and steps) stays on the device."""

    def __init__(self, algorithm: Algorithm, key: jax.Array, client: VariableClient, adder: Adder):
        """Makes one."""
        self._client = client
        self._adder = adder
        self._key = key
        self._num_steps = 0

        def select_action(params: Any, observation: jax.Array, state: tuple) -> tuple:
            key, next_key = jax.random.split(state[0])
            action = algorithm.act(params, key, observation[None], state[1])[0]
            return action, (next_key, state[1] + 1)

        self._policy = jax.jit(select_action)
        self._init = jax.jit(lambda key, num_steps: (key, num_steps))
        self._state: Any = None

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        """The action, as numpy."""
        action, self._state = self._policy(self._client.params, observation, self._state)
        self._num_steps += 1
        return np.asarray(action)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """An episode begins, with a new state of the actor."""
        self._key, key = jax.random.split(self._key)
        self._state = self._init(key, np.int32(self._num_steps))
        self._adder.add_first(timestep)

    def observe(self, action: np.ndarray, next_timestep: dm_env.TimeStep) -> None:
        """Records."""
        self._adder.add(action, next_timestep)

    def update(self) -> None:
        """Fetches parameters."""
        self._client.update()


class LearningActor:
    """An actor that learns when it is updated: while a batch waits, or the table holds many more."""

    def __init__(self, actor: Actor, learner: Learner, dataset: Prefetch, table: reverb.Table, sample_size: int):
        """Takes the parts; `sample_size` as `make_table` returns it."""
        self.actor = actor
        self._learner = learner
        self._dataset = dataset
        self._table = table
        self._sample_size = sample_size

    def update(self) -> None:
        """Learns what is due, then fetches parameters."""
        if self._train():
            self.actor.update()

    def _train(self) -> bool:
        trained = False
        while True:
            if self._dataset.ready():
                self._learner.step()
                trained = True
            elif not self._table.can_sample(self._sample_size):
                return trained
            else:
                time.sleep(0.001)  # lets the prefetching thread run
