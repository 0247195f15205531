"""Unrolling is stepping, whatever starts where; and what is burnt in gets no gradient."""

import functools
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit import networks as nets
from agentkit import specs
from agentkit.errors import ConfigError

B, T, F = 2, 5, 3
KEY = jax.random.PRNGKey(0)
SPEC = {"place": specs.Array((F,), np.float32), "speed": specs.Array((), np.float32)}


def make(core_size: int | None) -> nets.RecurrentNetwork:
    def head(features: jax.Array, observation: Any) -> Any:
        del observation
        return nets.Categorical(hk.Linear(2)(features)), hk.Linear(1)(features)[:, 0]

    return nets.recurrent_network(lambda o: nets.hidden_layers(o, (4,)), head, core_size, SPEC)


def example(network: nets.RecurrentNetwork, seed: int = 0) -> tuple[Any, Any, Any]:
    """Parameters, observations and a state that is none of an episode's start."""
    rng = np.random.default_rng(seed)
    observation = {"place": rng.normal(size=(B, T, F)), "speed": rng.normal(size=(B, T))}
    state = jax.tree.map(lambda x: rng.normal(size=(B, *x.shape)), network.initial_state)
    return network.init(KEY), *jax.tree.map(jnp.float32, (observation, state))


def by_steps(network: nets.RecurrentNetwork, params: Any, observation: Any, starts: jax.Array, state: Any) -> Any:
    """The oracle: row after row, by the function with which actors act."""

    @jax.vmap  # One environment after the other.
    def episode(observation: Any, starts: jax.Array, state: Any) -> Any:
        rows = []
        for t in range(starts.shape[0]):
            state = jax.tree.map(lambda new, old, t=t: jnp.where(starts[t], new, old), network.initial_state, state)
            output, state = nets.step_one(network, params, jax.tree.map(lambda x, t=t: x[t], observation), state)
            rows.append(output)
        return jax.tree.map(lambda *x: jnp.stack(x), *rows), state

    return episode(observation, starts, state)


def weighted(outputs: Any) -> jax.Array:
    """A number to differentiate, that depends on each output in a way of its own."""
    return sum(jnp.sum(jnp.sin(x + jnp.arange(x.size).reshape(x.shape))) for x in jax.tree.leaves(outputs))


def assert_close(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


@functools.cache
def differentiated(core_size: int | None, oracle: bool) -> Any:
    """Compiled: outputs and last state, and gradients by parameters, observations and the first state."""
    network = make(core_size)
    function = functools.partial(by_steps, network) if oracle else network.unroll

    def outputs(params: Any, observation: Any, state: Any, starts: jax.Array) -> Any:
        found = function(params, observation, starts, state)
        return weighted(found), found

    return jax.jit(jax.value_and_grad(outputs, argnums=(0, 1, 2), has_aux=True))


@pytest.mark.full
@settings(max_examples=30)
@given(starts=st.lists(st.booleans(), min_size=B * T, max_size=B * T), core_size=st.sampled_from([None, 5]))
def test_unrolling_is_stepping_with_a_new_state_at_each_start(starts: list[bool], core_size: int | None) -> None:
    given_ = (*example(make(core_size)), np.array(starts).reshape(B, T))
    assert_close(differentiated(core_size, False)(*given_), differentiated(core_size, True)(*given_))


@pytest.mark.full
def test_a_network_without_a_core_has_no_memory_and_one_with_it_has() -> None:
    starts = jnp.zeros((B, T), bool)
    for core_size, remembers in [(None, False), (5, True)]:
        network = make(core_size)
        params, observation, state = example(network)
        before, _ = network.unroll(params, observation, starts, state)
        changed = {**observation, "speed": observation["speed"].at[:, 0].add(1.0)}
        after, _ = network.unroll(params, changed, starts, state)
        assert np.any(before[1][:, 0] != after[1][:, 0])
        assert np.all(np.any(before[1][:, 1:] != after[1][:, 1:], axis=1)) == remembers
    assert make(None).initial_state == () and nets.state_spec(make(None)) == ()
    assert [leaf.shape for leaf in nets.state_spec(make(5))] == [(5,), (5,)]
    assert all(np.all(leaf == 0) for leaf in make(5).initial_state)


def test_a_core_without_units_is_refused() -> None:
    with pytest.raises(ConfigError, match="core_size must be None or at least 1, found 0"):
        make(0)


@pytest.mark.full
@pytest.mark.parametrize(("burn_in", "start"), [(0, 2), (3, None), (3, 1), (3, 3)])
def test_what_is_burnt_in_sets_the_state_and_gets_no_gradient(burn_in: int, start: int | None) -> None:
    """Against stepping from a constant: the state after the burn-in, or that of the start within it."""
    network = make(5)
    params, observation, state = example(network)
    starts = np.zeros((B, T), bool)
    if start is not None:
        starts[:, start] = True
    learns_from = start if start is not None and start < burn_in else burn_in

    def tail(params: Any, observation: Any, state: Any) -> tuple[jax.Array, Any]:
        outputs = nets.unroll_after_burn_in(network, params, observation, jnp.asarray(starts), state, burn_in)
        return weighted(jax.tree.map(lambda x: x[:, burn_in:], outputs)), outputs

    def oracle(params: Any, observation: Any, state: Any) -> tuple[jax.Array, Any]:
        def rows(some: slice, params: Any, state: Any) -> Any:
            return by_steps(network, params, jax.tree.map(lambda x: x[:, some], observation), starts[:, some], state)

        outputs, before = (), state
        if learns_from:
            outputs, before = rows(slice(None, learns_from), params, state)
            before = jax.lax.stop_gradient(before)
        after, _ = rows(slice(learns_from, None), params, before)
        outputs = jax.tree.map(lambda *x: jnp.concatenate(x, 1), outputs, after) if learns_from else after
        return weighted(jax.tree.map(lambda x: x[:, burn_in:], outputs)), outputs

    found, expected = (
        jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True))(params, observation, state)
        for f in (tail, oracle)
    )
    assert_close(found, expected)
    _, by_observation, by_state = found[1]
    assert np.all(by_observation["speed"][:, :learns_from] == 0)
    assert np.any(by_observation["speed"][:, learns_from] != 0)
    assert all(np.any(x != 0) for x in by_state) == (learns_from == 0 and start != 0)


@pytest.mark.one_case
@pytest.mark.parametrize("start", [True, False])
def test_a_stored_state_counts_but_at_an_episodes_start(start: bool) -> None:
    network = make(5)
    params, observation, state = example(network)
    starts = jnp.zeros((B, T), bool).at[:, 0].set(start)
    outputs = [
        nets.unroll_after_burn_in(network, params, observation, starts, jax.tree.map(lambda x, k=k: k * x, state), 2)
        for k in (1.0, 2.0)
    ]
    assert np.any(outputs[0][1] != outputs[1][1]) == (not start)
