"""`networks.Conv2D`: Haiku's to the bit, in every way to derive it, and as fast in a loop as XLA can be."""

import re
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks

KEY = jax.random.PRNGKey(0)
CASES = [
    ((20, 18, 3), 8, 4, "VALID"),
    ((9, 10, 2), 3, 2, "SAME"),
]


def make(module: Any, size: int, stride: int, padding: str) -> hk.Transformed:
    return hk.without_apply_rng(hk.transform(lambda x: jnp.sum(jnp.sin(module(5, size, stride, padding=padding)(x)))))


@pytest.mark.full
@pytest.mark.parametrize(("shape", "size", "stride", "padding"), CASES)
def test_it_is_haikus_to_the_bit(shape: Any, size: int, stride: int, padding: str) -> None:
    image = jax.random.normal(KEY, (3, *shape))
    ours, theirs = (make(module, size, stride, padding) for module in (networks.Conv2D, hk.Conv2D))
    params = ours.init(KEY, image)
    jax.tree.map(np.testing.assert_array_equal, params, theirs.init(KEY, image))
    other = jax.tree.map(lambda x: 0.5 * x + 0.1, params)

    def results(network: hk.Transformed) -> Any:
        grad = jax.grad(network.apply, (0, 1))
        return {
            "value and gradients": jax.jit(jax.value_and_grad(network.apply, (0, 1)))(params, image),
            "forward": jax.jvp(network.apply, (params, image), (other, image)),
            "forward over reverse": jax.jvp(lambda p: grad(p, image)[0], (params,), (other,)),
            "of many": jax.vmap(grad, (0, None))(jax.tree.map(lambda *x: jnp.stack(x), params, other), image),
        }

    found, expected = results(ours), results(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), found, expected)
    for name in ("value and gradients", "of many"):
        jax.tree.map(np.testing.assert_array_equal, found[name], expected[name])


def arrangements(torso: Any) -> set[str]:
    """The axes of all convolutions that XLA makes of a loop of gradient steps."""
    network = hk.without_apply_rng(hk.transform(lambda x: jnp.sum(torso(x) ** 2)))
    images = jnp.ones((2, 3, 84, 84, 2))
    params = network.init(KEY, images[0])

    def step(params: Any, image: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(network.apply)(params, image)), None

    text = jax.jit(lambda params: jax.lax.scan(step, params, images)[0]).lower(params).compile().as_text()
    return set(re.findall(r"dim_labels=(\S+?),", text))


@pytest.mark.full
@pytest.mark.parametrize("torso", [networks.AtariTorso, networks.DrqTorso, networks.ResidualTorso, networks.GridTorso])
def test_in_a_loop_gradients_have_the_arrangement_that_is_fast_on_a_cpu(torso: Any) -> None:
    assert arrangements(lambda x: torso()(x)) == {"b01f_01io->b01f"}


@pytest.mark.full
def test_haikus_have_others() -> None:
    """An update takes some twenty times as long with them; once XLA mends that, `Conv2D` may go."""
    assert len(arrangements(lambda x: hk.Conv2D(4, 3)(hk.Conv2D(4, 3)(x)))) > 1
