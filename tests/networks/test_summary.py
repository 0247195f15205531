"""The table of a network counts every parameter once, and describes inputs as they are encoded."""

import math

import haiku as hk
import jax
import numpy as np
import pytest

from agentkit import networks, specs
from agentkit.agents import registry
from agentkit.networks.summary import Layer, count, describe_inputs, layers_of
from tests.agents.test_torso import spec_of

SPEC = {
    "image": specs.BoundedArray((3, 40, 40), np.uint8, 0, 255),
    "stack": specs.BoundedArray((2, 9, 8, 1), np.float32, 0, 255),
    "unit": specs.BoundedArray((9, 8, 1), np.float32, 0, 1),
    "cell": specs.DiscreteArray(7),
    "cards": specs.BoundedArray((2,), np.int64, 0, np.array([1, 2])),
    "board": specs.Array((4, 3), np.float32),
    specs.ACTION_MASK: specs.BoundedArray((2,), np.int32, 0, 1),
}
SAID = {
    "image": "an image of 40 x 40 pixels and 3 channels, divided by 255",
    "stack": "a stack of 2 images of 9 x 8 pixels and 1 channel, divided by 255",
    "unit": "an image of 9 x 8 pixels and 1 channel",
    "cell": "a choice as 7 indicators",
    "cards": "2 choices as 5 indicators",
    "board": "12 numbers as they are",
    specs.ACTION_MASK: "which actions are legal",
}


def test_each_part_of_an_observation_is_described_as_it_is_encoded() -> None:
    described = {name: (kind, text) for name, kind, text in describe_inputs(SPEC)}
    assert {name: text for name, (_, text) in described.items()} == SAID
    assert described["image"][0] == "uint8 3x40x40" and described["cell"][0] == "int32"
    encoded = networks.encode_inputs(SPEC, jax.tree.map(lambda s: np.full((1, *s.shape), 1, s.dtype), SPEC))
    for name, text in SAID.items():
        if "indicators" in text:
            assert encoded[name].shape == (1, int(text.split()[-2]))
    assert describe_inputs(specs.Array((), np.float32)) == [("observation", "float32", "1 number as it is")]


@pytest.mark.parametrize("name", registry.names())
def test_every_parameter_of_every_agent_is_counted_once(name: str) -> None:
    made = registry.make(name).make_networks(spec_of(name, 4))
    inits = [made.init] if hasattr(made, "init") else [part.init for part in made if hasattr(part, "init")]
    expected = sum(count(jax.eval_shape(init, jax.ShapeDtypeStruct((2,), np.uint32)))[0] for init in inits)
    layers = layers_of(made)
    assert sum(layer.num_parameters for layer in layers) == expected > 0
    for layer in layers:
        assert layer.module == "~" or (layer.inputs and layer.outputs), layer
        if layer.module.startswith("linear"):
            (inputs,), (outputs,) = layer.inputs, layer.outputs
            assert layer.num_parameters == (math.prod(inputs) + 1) * math.prod(outputs)


def test_layers_have_the_shapes_that_they_are_applied_to_in_their_order() -> None:
    def function(x: jax.Array) -> jax.Array:
        x = hk.Linear(5, name="zuerst")(hk.Conv2D(2, 3)(x).reshape(1, -1))
        return hk.Linear(1, name="dann")(x) + hk.get_parameter("bias", (), init=hk.initializers.Constant(0.0))

    network = networks.make_network(function, specs.Array((4, 6, 1), np.float32))
    assert layers_of(network) == [
        Layer("", "conv2_d", ((4, 6, 1),), ((4, 6, 2),), 3 * 3 * 2 + 2),
        Layer("", "zuerst", ((48,),), ((5,),), 245),
        Layer("", "dann", ((5,),), ((1,),), 6),
        Layer("", "~", (), (), 1),
    ]


def test_networks_of_one_size_keep_their_own_order() -> None:
    """Of Gumbel MuZero's three networks two have modules of the same name and size."""
    layers = layers_of(registry.make("gumbel_muzero").make_networks(spec_of("gumbel_muzero", 4)))
    assert [layer.module for layer in layers if layer.part == "2"] == ["linear", "linear_1", "linear_2", "linear_3"]
