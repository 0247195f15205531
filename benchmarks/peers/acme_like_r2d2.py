"""R2D2 for `acme_like_side.py`: what dm-acme has in its place for sequences and memory.

| here | in dm-acme |
|---|---|
| `SequenceAdder` | acme/adders/reverb/sequence.py, with zeros after an episode's end |
| `r2d2` | acme/agents/jax/r2d2/{networks,learning}.py |
| `RecurrentActor` | acme/agents/jax/r2d2/actor.py, acme/agents/jax/actors.py |
| `PriorityLearner` | acme/agents/jax/r2d2/learning.py: `step`, with priorities written by a thread |

As in acme_like_updates.py: Acme's structure, the networks and sizes of the workload, `jit` where Acme has `pmap`.
"""

from __future__ import annotations

import functools
import time
from concurrent import futures
from typing import Any, NamedTuple

import dm_env
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import reverb
import rlax
import tensorflow as tf
import tree
from acme_like_loop import MAX_IN_FLIGHT_ITEMS, TABLE, WRITER_SECONDS, Learner, VariableClient
from acme_like_updates import Algorithm, ValueState

TRANSFORM = rlax.SIGNED_HYPERBOLIC_PAIR


class Step(NamedTuple):
    """A row of a sequence (acme/adders/reverb/base.py); sequences are ``[B, T, ...]``."""

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any


def sequence_length(settings: dict[str, Any]) -> int:
    """Rows of an item: burn-in, those that teach, and one to bootstrap from."""
    return int(settings["sequence_length"]) + 1


def steps_per_item(settings: dict[str, Any], episode_length: int) -> float:
    """How many environment steps an item stands for, where all episodes have `episode_length` steps."""
    beyond = max(0, episode_length + 1 - sequence_length(settings))
    return episode_length / (1 + -(-beyond // settings["sequence_period"]))


def signature(settings: dict[str, Any], observation: Any) -> Step:
    """Of the table."""
    rows, state = sequence_length(settings), (settings["core_size"],)

    def spec(shape: tuple[int, ...], dtype: Any, name: str) -> tf.TensorSpec:
        return tf.TensorSpec((rows, *shape), dtype, name)

    core = hk.LSTMState(spec(state, np.float32, "hidden"), spec(state, np.float32, "cell"))
    return Step(
        spec(observation.shape, observation.dtype, "observation"),
        spec((), np.int32, "action"),
        spec((), np.float32, "reward"),
        spec((), np.float32, "discount"),
        spec((), np.bool_, "start_of_episode"),
        {"core_state": core},
    )


class SequenceAdder:
    """Overlapping sequences of one episode; the last is filled with zeros."""

    def __init__(self, client: reverb.Client, length: int, period: int):
        """Makes one."""
        self._client = client
        self._length = length
        self._period = period
        self._made: reverb.TrajectoryWriter | None = None
        self._made_at = 0.0

    @property
    def _writer(self) -> reverb.TrajectoryWriter:
        if self._made is None:
            self._made = self._client.trajectory_writer(num_keep_alive_refs=self._length + 1, validate_items=True)
            self._made_at = time.time()
        return self._made

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode."""
        self._writer.append(
            {"observation": timestep.observation, "start_of_episode": timestep.first()}, partial_step=True
        )

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        """Adds an action and where it led, and creates the item that is complete with it."""
        step = {"action": action, "reward": next_timestep.reward, "discount": next_timestep.discount, "extras": extras}
        self._writer.append(step)
        self._writer.append(
            {"observation": next_timestep.observation, "start_of_episode": next_timestep.first()}, partial_step=True
        )
        self._write_if_due(self._writer.episode_steps, slice(-self._length - 1, -1))  # The newest row lacks its action.
        if next_timestep.last():
            self._write_last(step)
            self._writer.end_episode(clear_buffers=True)
            if time.time() - self._made_at >= WRITER_SECONDS:
                self._made = None

    def _write_last(self, step: dict[str, Any]) -> None:
        self._writer.append(tree.map_structure(np.zeros_like, step))
        rows = self._writer.episode_steps
        after = max(0, rows - self._length) % self._period
        missing = self._length - rows if rows < self._length else (self._period - after) % self._period
        history = self._writer.history
        if missing:
            zeros = tree.map_structure(lambda column: np.zeros_like(column[-1].numpy()), history)
            for _ in range(missing):
                self._writer.append(zeros)
        self._write_if_due(rows + missing, slice(-self._length, None))

    def _write_if_due(self, rows: int, part: slice) -> None:
        if rows < self._length or (rows - self._length) % self._period:
            return
        trajectory = tree.map_structure(lambda column: column[part], self._writer.history)
        self._writer.create_item(table=TABLE, priority=1.0, trajectory=Step(**trajectory))
        self._writer.flush(MAX_IN_FLIGHT_ITEMS)


class Network(NamedTuple):
    """Duelling values after an LSTM."""

    init: Any
    step: Any  # (params, observation [B, ...], state) -> (q [B, A], state)
    unroll: Any  # (params, observation [T, B, ...], state) -> (q [T, B, A], state)


def make_network(settings: dict[str, Any], observation: jax.Array, num_actions: int) -> Network:
    """ReLU layers, LSTM, duelling streams of its size."""
    size = settings["core_size"]

    def parts() -> tuple[Any, Any, Any]:
        def head(features: jax.Array) -> jax.Array:
            value = hk.nets.MLP([size, 1], name="value")(features)
            advantage = hk.nets.MLP([size, num_actions], name="advantage")(features)
            return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)

        return hk.nets.MLP(settings["hidden_sizes"], activate_final=True), hk.LSTM(size), head

    def step(inputs: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        trunk, core, head = parts()
        features, state = core(trunk(inputs), state)
        return head(features), state

    def unroll(inputs: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        trunk, core, head = parts()
        features, state = hk.static_unroll(core, hk.BatchApply(trunk)(inputs), state)
        return hk.BatchApply(head)(features), state

    both: Any = hk.without_apply_rng(hk.multi_transform(lambda: (step, (step, unroll))))
    zeros = initial_state(settings, 1)
    return Network(lambda key: both.init(key, observation, zeros), *both.apply)


def initial_state(settings: dict[str, Any], batch: int) -> hk.LSTMState:
    """Of an episode, ``[batch, core_size]``."""
    return hk.LSTMState(*(jnp.zeros((batch, settings["core_size"])) for _ in range(2)))


def r2d2(settings: dict[str, Any], observation: jax.Array, num_actions: int) -> Algorithm:
    """R2D2; its metrics hold the new priorities ``[B]``."""
    network = make_network(settings, observation, num_actions)
    clip = optax.clip_by_global_norm(settings["max_grad_norm"])
    optimizer = optax.chain(clip, optax.adam(settings["learning_rate"]))
    burn_in = settings["burn_in"]

    def loss(params: Any, target_params: Any, sample: reverb.ReplaySample) -> tuple[jax.Array, jax.Array]:
        data = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), sample.data)  # [T, B, ...]
        start = jax.tree.map(lambda x: x[0], data.extras["core_state"])
        before, rest = data.observation[:burn_in], data.observation[burn_in:]
        online, target = (network.unroll(p, before, start)[1] for p in (params, target_params))
        q, _ = network.unroll(params, rest, jax.lax.stop_gradient(online))
        q_target, _ = network.unroll(target_params, rest, jax.lax.stop_gradient(target))
        reward, action, discount = data.reward[burn_in:], data.action[burn_in:], data.discount[burn_in:]
        discount = (discount * settings["discount"]).astype(jnp.float32)
        learn = functools.partial(rlax.transformed_n_step_q_learning, n=settings["n_step"], tx_pair=TRANSFORM)
        selector = jnp.argmax(q, axis=-1)
        errors = jax.vmap(learn, 1, 1)(q[:-1], action[:-1], q_target[1:], selector[1:], reward[:-1], discount[:-1])
        per_item = 0.5 * jnp.sum(jnp.square(errors), axis=0)
        weights = (1.0 / sample.info.probability) ** settings["importance_exponent"]
        weights = (weights / jnp.max(weights)).astype(jnp.float32)
        size, eta = jnp.abs(errors), settings["max_priority_weight"]
        return jnp.mean(weights * per_item), eta * jnp.max(size, axis=0) + (1 - eta) * jnp.mean(size, axis=0)

    def init(key: jax.Array) -> ValueState:
        key, key_params = jax.random.split(key)
        params = network.init(key_params)
        return ValueState(params, params, optimizer.init(params), jnp.zeros((), jnp.int32), key)

    def step(state: ValueState, sample: reverb.ReplaySample) -> tuple[ValueState, dict[str, jax.Array]]:
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, priorities), grads = gradient(state.params, state.target_params, sample)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        steps = state.steps + 1
        targets = optax.periodic_update(params, state.target_params, steps, settings["target_update_period"])
        return ValueState(params, targets, opt_state, steps, state.key), {"loss": value, "priorities": priorities}

    def act(params: Any, key: jax.Array, observation: jax.Array, state: Any) -> Any:
        core, num_steps = state
        q, core = network.step(params, observation, core)
        start, end = settings["epsilon_start"], settings["epsilon_end"]
        epsilon = start + (end - start) * jnp.minimum(num_steps / settings["epsilon_steps"], 1.0)
        return rlax.epsilon_greedy(epsilon).sample(key, q).astype(jnp.int32), core

    return Algorithm(init, step, lambda state: state.params, act, fetches=True)


class RecurrentActor:
    """A jitted policy with an LSTM's state, which it stores with each step."""

    def __init__(
        self, algorithm: Algorithm, key: jax.Array, client: VariableClient, adder: SequenceAdder, start: hk.LSTMState
    ):
        """Makes one; `start` is an episode's first state, ``[1, core_size]``."""
        self._client = client
        self._adder = adder
        self._key = key
        self._start = start
        self._num_steps = 0

        def select_action(params: Any, observation: jax.Array, state: tuple) -> tuple:
            key, next_key = jax.random.split(state[0])
            action, core = algorithm.act(params, key, observation[None], state[1:])
            return action[0], (next_key, core, state[2] + 1)

        self._policy = jax.jit(select_action)
        self._state: Any = None
        self._before: Any = None

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        """The action, as numpy."""
        self._before = self._state[1]
        action, self._state = self._policy(self._client.params, observation, self._state)
        self._num_steps += 1
        return np.asarray(action)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """An episode begins."""
        self._key, key = jax.random.split(self._key)
        self._state = (key, self._start, jnp.int32(self._num_steps))
        self._adder.add_first(timestep)

    def observe(self, action: np.ndarray, next_timestep: dm_env.TimeStep) -> None:
        """Records."""
        core = jax.tree.map(lambda x: np.asarray(x)[0], self._before)
        self._adder.add(action, next_timestep, {"core_state": core})

    def update(self) -> None:
        """Fetches parameters."""
        self._client.update()


class PriorityLearner(Learner):
    """Writes the priorities of each batch back, in a thread."""

    def __init__(self, algorithm: Algorithm, dataset: Any, key: jax.Array, client: reverb.Client):
        """See `Learner`."""
        super().__init__(algorithm, dataset, key)
        self._client = client
        self._executor = futures.ThreadPoolExecutor(max_workers=1)

    def step(self) -> None:
        """One update."""
        sample = next(self._dataset)
        self._state, metrics = self._step(self._state, sample._replace(info=sample.info._replace(key=())))
        priorities = jax.device_get(metrics["priorities"])
        updates = dict(zip(sample.info.key.tolist(), priorities.tolist(), strict=True))
        self._executor.submit(self._client.mutate_priorities, TABLE, updates)
        self.num_updates += 1
