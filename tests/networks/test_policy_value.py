"""Policy and value: one interface for networks with and without a memory, which agree on rows and on segments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks as nets
from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.types import Step

KEY = jax.random.PRNGKey(0)
SCALAR = specs.Array((), np.float32)
OBSERVATION = specs.Array((3,), np.float32)
DISCRETE = specs.EnvironmentSpec(OBSERVATION, specs.DiscreteArray(4, np.int32), SCALAR, SCALAR)
CONTINUOUS = specs.EnvironmentSpec(OBSERVATION, specs.BoundedArray((2,), np.float32, -1.0, 3.0), SCALAR, SCALAR)
MAKERS = {
    "policy_value": lambda spec: nets.policy_value(spec, (8,), 0.5),
    "independent": lambda spec: nets.separate_policy_value(spec, (8,), 0.5),
    "without a core": lambda spec: nets.recurrent_policy_value(spec, (8,), 0.5, None),
    "with a core": lambda spec: nets.recurrent_policy_value(spec, (8,), 0.5, 5),
}


def segments(networks: nets.PolicyValue) -> Step:
    """Three of four rows; the first rows' states are not those of an episode's start."""
    rng = np.random.default_rng(0)
    start = np.zeros((3, 4), bool)
    start[0, 0] = start[1, 2] = True
    core = jax.tree.map(lambda x: rng.normal(size=(3, 4, *x.shape)).astype(np.float32), networks.network.initial_state)
    extras = nets.PolicyExtras(np.zeros((3, 4), np.int32), np.zeros((3, 4), np.float32), core)
    observation = rng.normal(size=(3, 4, 3)).astype(np.float32)
    return Step(observation, extras.sample, extras.log_prob, extras.log_prob, start, extras)


def row_by_row(networks: nets.PolicyValue, params: Any, data: Step) -> tuple[Any, Any]:
    """Numbers of the distributions, and values, ``[B, T, ...]``, one step after the other."""
    rows = []
    for i, starts in enumerate(data.start_of_episode):
        core = jax.tree.map(lambda x, i=i: x[i, 0], data.extras.core)
        for t, first in enumerate(starts):
            state = networks.network.initial_state if first else core
            output, core = nets.step_one(networks.network, params, data.observation[i, t], state)
            rows.append(output)
    return jax.tree.map(lambda *x: np.stack(x).reshape(*data.start_of_episode.shape, *x[0].shape), *rows)


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", MAKERS)
def test_segments_are_what_one_row_after_the_other_is(kind: str, spec: specs.EnvironmentSpec) -> None:
    """From the states that were stored with the first rows, anew where an episode starts."""
    networks = MAKERS[kind](spec)
    params, data = networks.init(KEY), segments(networks)
    memory = nets.stored_memory(data)
    outputs = networks.apply(params, data.observation, memory)
    assert outputs[1].shape == (3, 4)
    expected = row_by_row(networks, params, data)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), outputs, expected)
    assert networks.has_memory == (kind == "with a core")
    if networks.has_memory:
        other = memory._replace(core=jax.tree.map(jnp.zeros_like, memory.core))
        assert np.any(networks.apply(params, data.observation, other)[1][1] != outputs[1][1])
    else:
        flat = networks.apply(params, data.observation.reshape(-1, 3))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.reshape(a.shape), rtol=1e-5), flat, outputs)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_specs_of_what_is_stored_are_those_of_a_sample(kind: str) -> None:
    networks = MAKERS[kind](CONTINUOUS)
    (distribution, _), _ = nets.step_one(
        networks.network, networks.init(KEY), np.ones(3, np.float32), networks.network.initial_state
    )
    sample = distribution.sample(KEY)
    stored = nets.PolicyExtras(sample, distribution.log_prob(sample), networks.network.initial_state)
    specs.validate(jax.tree.map(np.asarray, stored), networks.extras_spec, "stored")
    action = networks.to_action(sample)
    assert action.shape == (2,) and np.all((action >= -1.0) & (action <= 3.0))


@pytest.mark.one_case
@pytest.mark.parametrize("kind", MAKERS)
def test_what_policy_and_value_share(kind: str) -> None:
    """The layers and the core of one, no parameter of the other."""
    networks = MAKERS[kind](DISCRETE)
    observation = jnp.ones((1, 1, 3))
    memory = nets.Memory(jnp.ones((1, 1), bool), jax.tree.map(lambda x: x[None], networks.network.initial_state))

    def policy(params: Any) -> Any:
        return jnp.sum(networks.apply(params, observation, memory)[0].log_prob(jnp.zeros((1, 1), jnp.int32)))

    def value(params: Any) -> Any:
        return jnp.sum(networks.apply(params, observation, memory)[1])

    params = networks.init(KEY)
    slopes = jax.tree.map(
        lambda *pair: [bool(np.any(x != 0)) for x in pair], jax.grad(policy)(params), jax.grad(value)(params)
    )
    moved = [tuple(pair) for pair in jax.tree.leaves(slopes, is_leaf=lambda x: isinstance(x, list))]
    assert moved.count((True, False)) >= 2 and moved.count((False, True)) >= 1
    assert ((True, True) in moved) == (kind in ("with a core", "without a core"))


def test_independent_ones_share_no_convolutions_either() -> None:
    images = DISCRETE._replace(observations=specs.Array((36, 36, 1), np.uint8))
    params = jax.eval_shape(nets.separate_policy_value(images, (8,), 1.0).init, KEY)
    assert isinstance(params, nets.PolicyCritic)
    assert all("atari_torso/conv2_d" in part for part in params)
    shared = jax.eval_shape(nets.policy_value(images, (8,), 1.0).init, KEY)
    assert sum(name.endswith("conv2_d") for name in shared) == 1


@pytest.mark.parametrize("kind", MAKERS)
def test_the_deviation_of_continuous_actions_at_first(kind: str) -> None:
    networks = MAKERS[kind](CONTINUOUS)
    (distribution, _), _ = nets.step_one(
        networks.network, networks.init(KEY), np.ones(3, np.float32), networks.network.initial_state
    )
    np.testing.assert_allclose(jnp.exp(distribution.log_std), 0.5, rtol=1e-6)


def test_what_they_are_not_for_is_refused() -> None:
    unbounded = DISCRETE._replace(actions=specs.Array((2,), np.float32))
    for kind in MAKERS:
        with pytest.raises(SpecError, match=r"found Array"):
            MAKERS[kind](unbounded)
    with pytest.raises(ConfigError, match="core_size must be None or at least 1, found 0"):
        nets.recurrent_policy_value(DISCRETE, (8,), 1.0, 0)
