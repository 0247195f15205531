"""A torso of the user's own: what it gets, what it may be, and what it must return."""

import functools
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks, specs
from agentkit.errors import SpecError, UnknownNameError
from tests.experiment.own_parts import OwnModule

KEY = jax.random.PRNGKey(0)
RNG = np.random.default_rng(0)
LAYER_NORMS = {"layer_norm", "layer_norm_1", "layer_norm_2"}


def apply(torso: Any, spec: Any, observation: Any) -> jax.Array:
    network = networks.make_network(networks.OwnTorso(torso), spec)
    return network.apply(network.init(KEY), observation)


def test_it_gets_choices_as_indicators_images_in_the_unit_interval_and_all_else_as_floats_of_its_own_shape() -> None:
    spec = {
        "cell": specs.DiscreteArray(4),
        "image": specs.BoundedArray((2, 6, 7), np.uint8, 0, 255),
        "board": specs.BoundedArray((4, 3), np.int32, -1, 1),
        specs.ACTION_MASK: specs.BoundedArray((2,), np.int32, 0, 1),
    }
    observation = {
        "cell": np.int32([1, 3]),
        "image": RNG.integers(0, 256, (2, 2, 6, 7), np.uint8),
        "board": RNG.integers(-1, 2, (2, 4, 3), np.int32),
        specs.ACTION_MASK: np.int32([[1, 1], [0, 1]]),
    }
    seen = {}

    def torso(nest: Any) -> Any:
        seen.update(nest)
        return nest["cell"]

    apply(torso, spec, observation)
    np.testing.assert_array_equal(seen["cell"], [[0, 1, 0, 0], [0, 0, 0, 1]])
    image = np.moveaxis(observation["image"], 1, -1) / np.float32(255)
    np.testing.assert_allclose(seen["image"], image, rtol=1e-6)
    assert seen["board"].dtype == seen["image"].dtype == np.float32
    np.testing.assert_array_equal(seen["board"], observation["board"])
    np.testing.assert_array_equal(seen[specs.ACTION_MASK], observation[specs.ACTION_MASK])


@pytest.mark.parametrize("layout", [(8, 9, 3), (3, 9, 8), (2, 8, 9, 3), (6, 9, 7), (6, 8, 9, 4)])
def test_inputs_that_are_ready_stay_as_they_are(layout: tuple[int, ...]) -> None:
    """So agentkit's own torsos, which make images ready themselves, may be handed in like one's own."""
    spec = {"image": specs.BoundedArray(layout, np.uint8, 0, 255), "speed": specs.Array((2,), np.float32)}
    observation = {"image": RNG.integers(0, 256, (1, *layout), np.uint8), "speed": RNG.random((1, 2), np.float32)}
    once = apply(networks.flatten_torso, spec, observation)
    np.testing.assert_array_equal(once, apply(networks.OwnTorso(networks.flatten_torso), spec, observation))
    plain = networks.make_network(networks.flatten_torso, spec)
    np.testing.assert_array_equal(once, plain.apply({}, observation))
    partial = functools.partial(networks.torso, image_torso=lambda image: hk.Flatten()(image))
    np.testing.assert_array_equal(once, apply(partial, spec, observation))
    assert 0.5 < float(jnp.max(once)) <= 1.0


@pytest.mark.full
def test_it_may_be_a_class_of_modules_or_a_partial_of_one() -> None:
    spec, observation = specs.Array((5, 2), np.float32), RNG.random((4, 5, 2), np.float32)
    assert apply(OwnModule, spec, observation).shape == (4, 3)
    assert apply(functools.partial(OwnModule, num_features=6), spec, observation).shape == (4, 6)


@pytest.mark.parametrize(
    ("torso", "found"),
    [
        (lambda x: x, r"found shape \[1, 5, 2\]"),
        (lambda x: x.reshape(-1), r"found shape \[10\]"),
        (lambda x: x.reshape(-1, 2), r"found shape \[5, 2\]"),
        (lambda x: {"a": x.reshape(1, -1)}, r"found shape \{'a': \[1, 10\]\}"),
        (lambda x: None, "found shape None"),
    ],
)
def test_what_are_no_features_is_refused_with_its_shape(torso: Any, found: str) -> None:
    network = networks.make_network(networks.OwnTorso(torso), specs.Array((5, 2), np.float32))
    with pytest.raises(SpecError, match=rf"the torso .*<lambda> to return features \[B, D\], here \[1, D\], {found}"):
        jax.eval_shape(network.init, KEY)


def test_named_torsos_have_the_layers_that_their_names_promise() -> None:
    image, speed = jnp.zeros((1, 40, 40, 3), jnp.uint8), jnp.ones((1, 2))

    def modules(name: str, observation: Any) -> set[str]:
        torso = hk.transform(networks.torso_named(name))
        return {module.partition("/")[0] for module in jax.eval_shape(torso.init, KEY, observation)}

    assert modules("nature", {"image": image, "speed": speed}) == {"atari_torso"}
    assert modules("shallow", {"image": image, "speed": speed}) == {"shallow_torso"}
    assert modules("impala", {"image": image, "speed": speed}) == {"residual_torso"}
    assert modules("simba", speed) == {"linear", *(f"linear_{i}" for i in range(1, 5)), *LAYER_NORMS}
    assert modules("flatten", {"image": image, "speed": speed}) == set()
    for name in ("nature", "shallow", "impala"):
        with pytest.raises(SpecError, match=rf"torso '{name}' is for images.*shapes \[\[2\]\]"):
            modules(name, speed)
    with pytest.raises(UnknownNameError, match=r"Unknown torso 'natur'. Did you mean 'nature'"):
        networks.torso_named("natur")


def test_simbas_network_by_hand() -> None:
    """Of one block: each normalisation is in front of its layers, and what comes in is added to what they give."""
    x = RNG.normal(size=(3, 2)).astype(np.float32)
    network = networks.make_network(
        functools.partial(networks.simba_torso, width=5, num_blocks=1), specs.Array((2,), np.float32)
    )
    params = jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape).astype(np.float32), network.init(KEY))

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ params[name]["w"] + params[name]["b"]

    def normalize(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        return scaled * params[name]["scale"] + params[name]["offset"]

    first = linear("linear", x)
    inner = np.maximum(linear("linear_1", normalize("layer_norm", first)), 0.0)
    assert inner.shape == (3, 20)
    expected = normalize("layer_norm_1", first + linear("linear_2", inner))
    np.testing.assert_allclose(network.apply(params, x), expected, rtol=1e-3, atol=1e-4)
