"""Modules of Flax and Equinox as torsos: they compute what they compute alone, and their parameters are learned."""

from typing import Any

import jax
import numpy as np
import pytest

from agentkit import envs, networks, specs
from agentkit.agents import dqn, ppo
from agentkit.errors import ConfigError, MissingExtraError, SpecError
from agentkit.experiment.config.recipes import decode, encode

KEY = jax.random.PRNGKey(0)
SPEC = specs.Array((5, 2), np.float32)
BATCH = np.random.default_rng(0).random((3, 5, 2), np.float32)


def network_of(torso: Any) -> networks.Network:
    return networks.make_network(networks.OwnTorso(torso), SPEC)


def learned(torso: Any) -> tuple[Any, Any]:
    """Parameters, and the gradients of a sum of squares of the features."""
    network = network_of(torso)
    params = network.init(KEY)
    return params, jax.grad(lambda params: (network.apply(params, BATCH) ** 2).sum())(params)


@pytest.mark.full
def test_a_linen_module_computes_what_it_does_alone_and_each_parameter_is_learned() -> None:
    nn = pytest.importorskip("flax.linen")
    module = nn.Sequential([lambda x: x.reshape(x.shape[0], -1), nn.Dense(4), nn.tanh, nn.Dense(3, use_bias=False)])
    torso = networks.from_flax(module)
    params, grads = learned(torso)
    assert {(m, n): p.shape for m, bundle in params.items() for n, p in bundle.items()} == {
        ("sequential", "layers_1.bias"): (4,),
        ("sequential", "layers_1.kernel"): (10, 4),
        ("sequential", "layers_3.kernel"): (4, 3),
    }
    alone = {"params": {}}
    for name, leaf in params["sequential"].items():
        layer, _, kind = name.partition(".")
        alone["params"].setdefault(layer, {})[kind] = leaf
    np.testing.assert_array_equal(network_of(torso).apply(params, BATCH), module.apply(alone, BATCH))
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(grads))
    other = network_of(torso).init(jax.random.PRNGKey(1))
    assert np.any(other["sequential"]["layers_1.kernel"] != params["sequential"]["layers_1.kernel"])


@pytest.mark.full
def test_a_linen_module_is_written_by_its_class_and_what_differs_from_it() -> None:
    nn = pytest.importorskip("flax.linen")
    torso = networks.from_flax(nn.Sequential([nn.Dense(4), nn.LayerNorm(use_bias=False)]))
    code = encode(torso)
    assert decode(code, imports=["flax"]) == torso
    assert [layer.settings for layer in torso.settings["layers"]] == [{"features": 4}, {"use_bias": False}]


def test_a_linen_module_with_state_is_refused_before_anything_runs() -> None:
    nn = pytest.importorskip("flax.linen")
    module = nn.Sequential([lambda x: x.reshape(x.shape[0], -1), nn.BatchNorm(use_running_average=False)])
    with pytest.raises(SpecError, match=r"Sequential has variables beside its parameters, batch_stats"):
        network_of(networks.from_flax(module)).init(KEY)
    for wrong in (nn.Dense, 3, None):
        with pytest.raises(ConfigError, match=r"Expected a Linen module, such as from_flax\(MyTorso\(\)\)"):
            networks.from_flax(wrong)


@pytest.mark.full
def test_an_nnx_module_computes_what_it_does_alone_and_each_parameter_is_learned() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Torso(nnx.Module):
        def __init__(self, observation: Any, rngs: Any):
            self.layer = nnx.Linear(int(np.prod(observation.shape)), 3, rngs=rngs)

        def __call__(self, observation: Any) -> Any:
            return self.layer(observation.reshape(observation.shape[0], -1))

    params, grads = learned(networks.from_flax(Torso))
    params = jax.tree.map(np.asarray, params)
    ((bundle, weights),) = params.items()
    assert bundle == "torso" and {name: leaf.shape for name, leaf in weights.items()} == {
        "layer.bias": (3,),
        "layer.kernel": (10, 3),
    }
    features = network_of(networks.from_flax(Torso)).apply(params, BATCH)
    expected = BATCH.reshape(3, -1) @ weights["layer.kernel"] + weights["layer.bias"]
    np.testing.assert_allclose(features, expected, rtol=1e-5)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(grads))


def test_an_nnx_module_with_state_is_refused() -> None:
    nnx = pytest.importorskip("flax.nnx")
    with pytest.raises(SpecError, match=r"variables that are no nnx\.Param"):
        network_of(networks.from_flax(lambda o, rngs: nnx.BatchNorm(2, rngs=rngs))).init(KEY)
    dropping = networks.from_flax(
        lambda o, rngs: nnx.Sequential(nnx.Linear(2, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))
    )
    with pytest.raises(SpecError, match=r"keeps keys of random numbers.*Leave out what draws, e\.g\. Dropout"):
        network_of(dropping).init(KEY)


def make_mlp(observation: Any, key: jax.Array) -> Any:
    eqx = pytest.importorskip("equinox")
    return eqx.nn.Sequential([eqx.nn.Lambda(lambda x: x.reshape(-1)), eqx.nn.MLP(observation.size, 3, 4, 1, key=key)])


@pytest.mark.full
def test_an_equinox_module_computes_what_it_does_alone_and_each_parameter_is_learned() -> None:
    pytest.importorskip("equinox")
    torso = networks.from_equinox(make_mlp)
    params, grads = learned(torso)
    assert len(params["make_mlp"]) == 4 and all(np.any(leaf != 0) for leaf in jax.tree.leaves(grads))
    kernels = [next(v for k, v in params["make_mlp"].items() if f"layers.{i}.weight" in k) for i in range(2)]
    biases = [next(v for k, v in params["make_mlp"].items() if f"layers.{i}.bias" in k) for i in range(2)]
    kernels, biases = jax.tree.map(np.asarray, (kernels, biases))
    hidden = np.maximum(BATCH.reshape(3, -1) @ kernels[0].T + biases[0], 0)
    expected = hidden @ kernels[1].T + biases[1]
    np.testing.assert_allclose(network_of(torso).apply(params, BATCH), expected, rtol=1e-4, atol=1e-5)


def test_what_is_no_function_that_makes_an_equinox_module_is_refused() -> None:
    eqx = pytest.importorskip("equinox")
    for wrong in (eqx.nn.Lambda(lambda x: x), 3):
        with pytest.raises(ConfigError, match=r"Expected a function \(observation, key\) that makes an Equinox module"):
            networks.from_equinox(wrong)

    class Counted(eqx.Module):
        count: Any

    with pytest.raises(SpecError, match=r"floats, found count of int32"):
        network_of(networks.from_equinox(lambda o, key: Counted(jax.numpy.zeros(3, int)))).init(KEY)


@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_a_library_that_is_missing_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, library, None)
    if library == "flax":
        monkeypatch.setitem(__import__("sys").modules, "flax.linen", None)
    with pytest.raises(MissingExtraError, match=rf"agentkit-rl\[{library}\]"):
        getattr(networks, f"from_{library}")(lambda *arguments: None)


def test_a_flax_module_is_in_agents_with_and_without_a_memory() -> None:
    nn = pytest.importorskip("flax.linen")
    torso = networks.from_flax(nn.Sequential([lambda x: x.reshape(x.shape[0], -1), nn.Dense(4)]))
    environment_spec = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))
    for agent in (ppo.make_agent(ppo.Config(core_size=4), torso=torso), dqn.make_agent(torso=torso)):
        update = agent.make_update(agent.make_networks(environment_spec))
        state = jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))
        assert any("sequential" in jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state))
