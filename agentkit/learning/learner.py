"""An algorithm is an `Update`, three pure functions; `sgd` makes one of a loss, and the one learner runs any.

The learner owns all that has a side effect: it takes a batch (or K stacked ones), runs them in one compiled call
that donates the old state, writes priorities back, publishes the parameters, counts, and logs without waiting for the
device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentkit import nests
from agentkit.errors import ConfigError
from agentkit.types import Array, DrawnBatch, LossOutput, Nest, ReplaySample

if TYPE_CHECKING:
    import optax

Params = Any


class UpdateOutput(NamedTuple):
    """What an update tells the world.

    Attributes:
        metrics: dict of scalars.
        priorities: new priorities of the batch's items ``[B]``, or None.
    """

    metrics: dict[str, Array]
    priorities: Array | None = None


class Update(NamedTuple):
    """An algorithm, as the learner runs it. All three are pure and may be compiled.

    Attributes:
        init: ``key -> state``, the training state (parameters, optimiser states, key, ...).
        update: ``(state, batch) -> (state, UpdateOutput)``, one gradient step on one batch.
        variables: ``state -> {name: params}``, what actors may fetch; "policy" is what they act with.
        gradient: ``(params, batch, key) -> grads``, the first half of `update`, for actors that compute gradients;
            None where a gradient needs more than the variable "policy", such as a target network.
        apply: ``(state, grads) -> state``, the second half; None likewise.
    """

    init: Callable[[jax.Array], Nest]
    update: Callable[[Nest, ReplaySample], tuple[Nest, UpdateOutput]]
    variables: Callable[[Nest], Mapping[str, Nest]]
    gradient: Callable[[Params, ReplaySample, jax.Array], Params] | None = None
    apply: Callable[[Nest, Params], Nest] | None = None


class Publisher(Protocol):
    """Where parameters go: `agentkit.variables.VariableStore` or a transport of its kind."""

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the newest."""
        ...


@dataclasses.dataclass
class LearnerCallbacks:
    """What a learner tells besides its state; each may be None.

    Attributes:
        publisher: gets the parameters after every step.
        write_priorities: ``(keys [B], priorities [B]) -> None``, if the update returns priorities.
        log: ``dict of floats -> None``.
        log_seconds: how often to log.
    """

    publisher: Publisher | None = None
    write_priorities: Callable[[np.ndarray, np.ndarray], None] | None = None
    log: Callable[[dict[str, float]], None] | None = None
    log_seconds: float = 5.0


_QUICK_TO_COMPILE: tuple[dict[str, Any], ...] = (
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
)


def _run_once(function: Callable[[jax.Array], Nest], key: jax.Array) -> Nest:
    """``function(key)``, compiled in a third of the time on a CPU: what runs once need not run fast."""
    lowered = jax.jit(function).lower(key)
    for options in _QUICK_TO_COMPILE if jax.default_backend() == "cpu" else ():
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # Not every version of XLA has every option.
            return lowered.compile(compiler_options=options)(key)
    return lowered.compile()(key)


class Learner:
    """Runs an `Update`. Single-threaded: one `step` at a time."""

    def __init__(
        self,
        update: Update,
        dataset: Iterator[DrawnBatch],
        key: jax.Array,
        *,
        num_updates: int = 1,
        callbacks: LearnerCallbacks | None = None,
        devices: Sequence[jax.Device] | None = None,
    ):
        """Makes one.

        Args:
            update: the algorithm.
            dataset: batches with leaves ``[B, ...]``, or ``[K, B, ...]`` where `num_updates` K > 1.
            key: PRNG key ``uint32[2]`` for the initial state.
            num_updates: K, updates in one compiled `lax.scan`.
            callbacks: where parameters, priorities and logs go.
            devices: train data-parallel over these, each taking B / len(devices) of every batch;
                None for JAX's default device.
        """
        if num_updates < 1:
            raise ConfigError(f"num_updates must be at least 1, found {num_updates}.")
        self._update = update
        self._dataset = dataset
        self._num_updates = num_updates
        self._callbacks = callbacks or LearnerCallbacks()
        self._version = 0
        self._metrics: dict[str, Any] = {}
        self._log_time = time.monotonic()
        self._log_version = 0
        self._mesh = None if devices is None else Mesh(np.asarray(devices), ("batch",))
        self._compiled = self._compile()
        self._state = self._place(_run_once(update.init, key))
        self._publish(jax.jit(self._variables)(self._state))

    @property
    def state(self) -> Nest:
        """The training state; the next `step` donates its buffers, so copy what you keep."""
        return self._state

    @property
    def num_updates_done(self) -> int:
        """Updates since the training began, before a restore included."""
        return self._version

    def _compile(self) -> Callable:
        def run(state: Nest, batch: ReplaySample) -> tuple[Nest, UpdateOutput, Mapping[str, Nest]]:
            if self._num_updates == 1:
                state, output = self._update.update(state, batch)
            else:
                state, outputs = jax.lax.scan(self._update.update, state, batch)
                output = outputs._replace(metrics=jax.tree.map(jnp.mean, outputs.metrics))
            return state, output, self._variables(state)

        if self._mesh is None:
            return jax.jit(run, donate_argnums=0)
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        split = NamedSharding(self._mesh, PartitionSpec(*([None] * (self._num_updates > 1)), "batch"))
        # Params are replicated and the batch is split, so XLA inserts the mean of the gradients.
        return jax.jit(run, donate_argnums=0, in_shardings=(everywhere, split), out_shardings=everywhere)

    def _variables(self, state: Nest) -> dict[str, Nest]:
        # Copies: the state's buffers are donated to the next step while actors still hold these.
        return jax.tree.map(jnp.copy, dict(self._update.variables(state)))

    def _place(self, state: Nest) -> Nest:
        if self._mesh is None:
            return state
        return jax.device_put(state, NamedSharding(self._mesh, PartitionSpec()))

    def _publish(self, variables: Mapping[str, Nest]) -> None:
        if self._callbacks.publisher is not None:
            self._callbacks.publisher.publish(self._version, variables)

    def step(self) -> None:
        """Takes the next (stacked) batch and runs its updates; returns before the device is done.

        Raises:
            ReplayTimeoutError, ReplayClosedError: from the dataset.
            ConfigError: the batch cannot be divided among the devices.
        """
        keys, batch = next(self._dataset)
        if self._mesh is not None and np.shape(keys)[-1] % self._mesh.size:
            raise ConfigError(
                f"A batch of {np.shape(keys)[-1]} items cannot be divided among {self._mesh.size} devices. "
                "Choose a batch size that is a multiple of the number of devices."
            )
        self._state, output, variables = self._compiled(self._state, batch)
        self._version += self._num_updates
        self._publish(variables)
        if output.priorities is not None and self._callbacks.write_priorities is not None:
            priorities = np.asarray(output.priorities, np.float64)
            self._callbacks.write_priorities(np.asarray(keys).reshape(-1), priorities.reshape(-1))
        self._metrics = output.metrics
        self._log_if_time()

    def _log_if_time(self) -> None:
        if self._callbacks.log is None:
            return
        now = time.monotonic()
        if now - self._log_time < self._callbacks.log_seconds:
            return
        self._callbacks.log(self.metrics(now))
        self._log_time, self._log_version = now, self._version

    def metrics(self, now: float | None = None) -> dict[str, float]:
        """The newest metrics as floats (waits for the device), with the rate since the last log."""
        elapsed = (time.monotonic() if now is None else now) - self._log_time
        rate = (self._version - self._log_version) / max(elapsed, 1e-9)
        values = {name: float(value) for name, value in jax.device_get(self._metrics).items()}
        return {"updates": float(self._version), "updates_per_second": rate, **values}

    def save(self) -> dict[str, Any]:
        """The training state by path, and the number of updates."""
        leaves = nests.flatten_to_paths(jax.device_get(self._state))
        return {"num_updates": self._version, "state": {path: np.asarray(leaf) for path, leaf in leaves.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `save` returned, and publishes its parameters.

        Raises:
            CheckpointError: an array is missing, unknown, or of another shape or dtype.
        """
        restored = nests.restore_from_paths(self._state, state["state"], "Learner state")
        self._state = self._place(jax.tree.map(jnp.array, restored))
        self._version = self._log_version = int(state["num_updates"])
        self._publish(jax.jit(self._variables)(self._state))


Loss = Callable[[Params, Params, ReplaySample, jax.Array], LossOutput]
"""``(params, target_params, batch, key) -> LossOutput``."""

TargetUpdate = Callable[[Any, Any, Any], Any]
"""``(params, target_params, num_updates) -> target_params``."""


class SgdState(NamedTuple):
    """The training state of `sgd`.

    Attributes:
        params: the parameters that the loss is differentiated by.
        target_params: a lagged copy of them; ``()`` where there is no target network.
        opt_state: the optimiser's state.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    params: Params
    target_params: Params
    opt_state: Any
    key: jax.Array
    num_updates: Array


def sgd(
    loss: Loss,
    init_params: Callable[[jax.Array], Params],
    optimizer: optax.GradientTransformation,
    target_update: TargetUpdate | None = None,
) -> Update:
    """One loss, one set of parameters, one optimiser: the whole of most value-based algorithms.

    Args:
        loss: what to minimise.
        init_params: ``key -> params``.
        optimizer: an optax transformation (clip gradients there).
        target_update: how target parameters follow (`periodic`, `polyak`); None for no target.

    Returns:
        An `Update` that publishes ``params`` under the name "policy".
    """

    def init(key: jax.Array) -> SgdState:
        key, params_key = jax.random.split(key)
        params = init_params(params_key)
        target_params = () if target_update is None else jax.tree.map(jnp.copy, params)
        return SgdState(params, target_params, optimizer.init(params), key, jnp.zeros((), jnp.int32))

    def update(state: SgdState, batch: ReplaySample) -> tuple[SgdState, UpdateOutput]:
        # A loss that draws nothing makes this dead code; a split, whose half is kept, would be run.
        loss_key = jax.random.fold_in(state.key, state.num_updates)

        def objective(params: Params) -> tuple[Array, LossOutput]:
            output = loss(params, state.target_params, batch, loss_key)
            return output.loss, output

        grads, output = jax.grad(objective, has_aux=True)(state.params)
        metrics = {"loss": output.loss, "grad_norm": global_norm(grads), **output.metrics}
        return _follow(state, grads, optimizer, target_update), UpdateOutput(metrics, output.priorities)

    def variables(state: SgdState) -> dict[str, Params]:
        return {"policy": state.params}

    if target_update is not None:
        return Update(init, update, variables)

    def gradient(params: Params, batch: ReplaySample, key: jax.Array) -> Params:
        return jax.grad(lambda p: loss(p, (), batch, key).loss)(params)

    def apply(state: SgdState, grads: Params) -> SgdState:
        return _follow(state, grads, optimizer, None)

    return Update(init, update, variables, gradient, apply)


def periodic(period: int) -> TargetUpdate:
    """Copies the parameters every `period` updates (Mnih et al. 2015)."""
    if period < 1:
        raise ConfigError(f"The target update period must be at least 1, found {period}.")
    import optax  # Not at import time: actors load this file, and optimise nothing.

    def update(params: Any, target_params: Any, num_updates: Any) -> Any:
        return optax.periodic_update(params, target_params, jnp.asarray(num_updates), period)

    return update


def polyak(tau: float) -> TargetUpdate:
    """Moves the target a fraction `tau` towards the parameters at each update (Lillicrap et al. 2016)."""
    if not 0 < tau <= 1:
        raise ConfigError(f"The Polyak rate tau must be in (0, 1], found {tau}.")
    import optax

    def update(params: Any, target_params: Any, num_updates: Any) -> Any:
        del num_updates
        return optax.incremental_update(params, target_params, tau)

    return update


def _follow(
    state: SgdState, grads: Params, optimizer: optax.GradientTransformation, target_update: TargetUpdate | None
) -> SgdState:
    """The state after one step along `grads`."""
    params, opt_state = optimizer_step(optimizer, grads, state.params, state.opt_state)
    num_updates = state.num_updates + 1
    target_params = state.target_params
    if target_update is not None:
        target_params = target_update(params, target_params, num_updates)
    return SgdState(params, target_params, opt_state, state.key, num_updates)


def global_norm(grads: Params) -> Array:
    """The global l2 norm; our own, since newer versions of optax deprecate the Reverb stack's name for it."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(grads)))


def adam(learning_rate: float, max_grad_norm: float | None = None) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015), after clipping the gradients to a global norm if one is given.

    Its moments are two flat vectors: on small networks, where each operation costs more than its
    arithmetic, that makes an update a quarter faster than one moment for each parameter array.
    """
    import optax

    optimizer = optax.adam(learning_rate)
    if max_grad_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(max_grad_norm), optimizer)
    return optax.flatten(optimizer)


def linear_decay(learning_rate: float, num_rows: Array, anneal_steps: int | None) -> Array:
    """The step size ``[]`` after `num_rows` rows, which falls linearly to 0 in `anneal_steps`; None: it stays."""
    left = 1.0 if anneal_steps is None else jnp.maximum(1.0 - num_rows / anneal_steps, 0.0)
    return jnp.asarray(learning_rate * left)


def optimizer_step(
    optimizer: optax.GradientTransformation, grads: Nest, params: Nest, opt_state: Any, scale: Array | float = 1.0
) -> tuple[Nest, Any]:
    """Parameters and optimiser state after a step along `grads`; `scale` multiplies the optimiser's own step size."""
    steps, opt_state = optimizer.update(grads, opt_state, params)
    return jax.tree.map(lambda x, step: x + scale * step, params, steps), opt_state
