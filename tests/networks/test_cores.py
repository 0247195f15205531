"""The kinds of memory: each is unrolled as it is stepped; an attention memory sees so many rows and no more."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks as nets
from agentkit import specs
from agentkit.errors import AgentkitError
from agentkit.networks.cores import Core, initial_core_state, make_core
from tests.networks.test_recurrent import assert_close

B, T, F, D = 2, 7, 3, 4
KEY = jax.random.PRNGKey(0)
RNG = np.random.default_rng(0)


def make(core: Core) -> nets.RecurrentNetwork:
    spec = specs.Array((F,), np.float32)
    return nets.recurrent_network(lambda o: o, lambda features, o: hk.Linear(2)(features), D, spec, core)


@pytest.mark.full
@pytest.mark.parametrize("core", ["gru", nets.GTrXL(memory_length=3, num_layers=2)], ids=["gru", "gtrxl"])
def test_unrolling_is_stepping_with_a_new_state_at_each_start(core: Core) -> None:
    """Over more rows than the memory has, from a state that is none of an episode's start."""
    network = make(core)
    params, step = jax.jit(network.init)(KEY), jax.jit(network.step)
    observation, state = jnp.float32(RNG.normal(size=(B, T, F))), _batch(network.initial_state)
    for _ in range(2):
        _, state = step(params, jnp.float32(RNG.normal(size=(B, F))), state)
    starts = np.zeros((B, T), bool)
    starts[0, 2] = starts[1, 0] = starts[1, 6] = True
    found, after = jax.jit(network.unroll)(params, observation, starts, state)
    for t in range(T):
        anew = _batch(network.initial_state)
        state = jax.tree.map(lambda new, old, t=t: jnp.where(_like(starts[:, t], old), new, old), anew, state)
        expected, state = step(params, observation[:, t], state)
        np.testing.assert_allclose(found[:, t], expected, rtol=1e-5, atol=1e-5)
    assert_close(_seen(after), _seen(state))


def _batch(state: Any) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (B, *x.shape)), state)


def _like(mask: np.ndarray, x: jax.Array) -> np.ndarray:
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def _seen(state: Any) -> Any:
    """A state without what is no longer looked at, which need not be equal."""
    if not hasattr(state, "count"):
        return state
    length = state.inputs.shape[-2]
    is_seen = np.arange(length)[None] >= length - np.asarray(state.count)[:, None]
    return state._replace(inputs=np.where(is_seen[:, None, :, None], state.inputs, 0.0))


@pytest.mark.full
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_row_is_remembered_for_as_long_as_the_memory_is_and_not_longer(num_layers: int) -> None:
    """Of L layers each sees 3 rows further back than the one below."""
    network = make(nets.GTrXL(memory_length=3, num_layers=num_layers))
    params, starts = jax.jit(network.init)(KEY), jnp.zeros((B, 9), bool)
    observation, state = jnp.float32(RNG.normal(size=(B, 9, F))), _batch(network.initial_state)
    unroll = jax.jit(network.unroll)
    usual, _ = unroll(params, observation, starts, state)
    changed, _ = unroll(params, observation.at[:, 1].add(1.0), starts, state)
    differs = np.any(changed != usual, axis=(0, 2))
    last = 1 + 3 * num_layers
    np.testing.assert_array_equal(differs, [1 <= t <= last for t in range(9)])
    # Rows of the state that are of no row of this episode are not looked at.
    other = state._replace(inputs=state.inputs + jnp.array([1.0, -2.0, 3.0, 0.5])[None, None, None])
    np.testing.assert_array_equal(unroll(params, observation, starts, other)[0], usual)
    # An episode that starts ends it, too.
    again, _ = unroll(params, observation.at[:, 1].add(1.0), starts.at[:, 3].set(True), state)
    fresh, _ = unroll(params, observation, starts.at[:, 3].set(True), state)
    np.testing.assert_array_equal(np.any(again != fresh, axis=(0, 2)), [t in (1, 2) for t in range(9)])


@pytest.mark.full
def test_the_larger_the_gates_bias_the_closer_is_a_layer_to_the_identity() -> None:
    x, distances = jnp.float32(RNG.normal(size=(B, F))), []
    for bias in (0.0, 2.0, 30.0):
        config = nets.GTrXL(memory_length=3, gate_bias=bias)

        def applied(x: jax.Array, config: nets.GTrXL = config) -> jax.Array:
            return make_core(config, D)(x, _batch(initial_core_state(config, D)))[0]

        network = hk.without_apply_rng(hk.transform(applied))
        params = jax.jit(network.init)(KEY, x)
        embedding = x @ params["core/embedding"]["w"]
        distances.append(float(jnp.abs(jax.jit(network.apply)(params, x) - embedding).mean()))
    assert distances[2] < 1e-6 < 1.4 * distances[1] < distances[0]


def test_a_stored_state_has_a_row_for_each_row_that_is_remembered() -> None:
    state = nets.state_spec(make(nets.GTrXL(memory_length=3, num_layers=2)))
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(state)] == [((2, 3, D), np.float32), ((), np.int32)]
    assert make("gtrxl").initial_state.inputs.shape == (1, 16, D)
    assert [x.shape for x in jax.tree.leaves(make("gru").initial_state)] == [(D,)]


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (lambda: make("transformer"), "Unknown core 'transformer'.*gtrxl"),
        (lambda: make(nets.GTrXL(num_heads=3)), "num_heads of gtrxl must divide .* found GTrXL.*num_heads=3"),
        (lambda: nets.GTrXL(memory_length=0), "memory_length of gtrxl must be .* at least 1, found 0"),
        (lambda: nets.GTrXL(num_layers=1.5), "num_layers of gtrxl must be .* found 1.5"),  # type: ignore[arg-type]
        (lambda: nets.GTrXL(gate_bias=float("nan")), "gate_bias of gtrxl must be a finite number, found nan"),
    ],
)
def test_an_impossible_core_is_refused(build: Any, found: str) -> None:
    with pytest.raises(AgentkitError, match=found):
        build()
