"""`torso=` is the same argument for every agent, and all of an agent's networks begin with it."""

from typing import Any

import jax
import numpy as np
import pytest

from agentkit import networks, specs
from agentkit.agents import impala, registry
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.checks.agent_fits import check_fit
from tests.agents.spaces import spec_for
from tests.experiment.own_parts import make_wide_networks, own_torso

KEY = jax.ShapeDtypeStruct((2,), np.uint32)
SIZES = (6, 11)


def spec_of(name: str, size: int, rewards: Any = None) -> specs.EnvironmentSpec:
    spec = spec_for(name, {"vector": specs.Array((size,), np.float32), "count": specs.Array((), np.int32)})
    return spec if rewards is None else spec._replace(rewards=rewards)


def shapes(agent: Any, spec: specs.EnvironmentSpec) -> Any:
    made = agent.make_networks(spec)
    parts = [made] if hasattr(made, "init") else [part for part in made if hasattr(part, "init")]
    assert parts
    return [jax.eval_shape(part.init, KEY) for part in parts]


@pytest.mark.parametrize("name", registry.names())
def test_all_networks_of_every_agent_begin_with_the_torso(name: str) -> None:
    """Else layers behind it would be larger where the observation is."""
    make_agent = registry.module(name).make_agent
    small, large = (shapes(make_agent(torso=own_torso), spec_of(name, size)) for size in SIZES)
    paths = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(small)[0]}
    assert any("'own'" in path for path in paths)
    for (path, one), (_, other) in zip(*map(jax.tree_util.tree_leaves_with_path, (small, large)), strict=True):
        is_torso = "['own" in jax.tree_util.keystr(path)
        assert is_torso or one.shape == other.shape, f"{jax.tree_util.keystr(path)} sees the observation itself"
    plain, larger = (shapes(make_agent(), spec_of(name, size)) for size in SIZES)
    assert jax.tree.leaves(plain) != jax.tree.leaves(larger), "the check would pass whatever the torso"


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_the_stock_torso_handed_in_changes_no_bit(name: str) -> None:
    module = registry.module(name)

    def initial(**torso: Any) -> Any:
        made = module.make_agent(module.Config(hidden_sizes=(4,)), **torso).make_networks(spec_of(name, 4))
        return jax.jit(made.init)(jax.random.PRNGKey(1))

    jax.tree.map(np.testing.assert_array_equal, initial(torso=networks.torso), initial())


def test_what_cannot_be_a_torso_is_refused_where_the_agent_is_made() -> None:
    make_agent = registry.module("dqn").make_agent
    with pytest.raises(
        ConfigError, match=r"torso= to be a function.*nature, shallow, impala, drq, simba, flatten; found 3"
    ):
        make_agent(torso=3)
    with pytest.raises(UnknownNameError, match="Did you mean 'impala'"):
        make_agent(torso="imapla")
    with pytest.raises(ConfigError, match="make_networks to take a torso, found make_wide_networks without"):
        make_agent(torso=own_torso, make_networks=make_wide_networks)
    with pytest.raises(ConfigError, match=r"residual_torso=True or a torso of your own, found both"):
        impala.make_agent(impala.Config(residual_torso=True), torso=own_torso).make_networks(spec_of("impala", 4))


def test_a_run_is_refused_before_it_begins_where_the_torso_returns_no_features(tmp_path) -> None:
    agent = registry.module("dqn").make_agent(torso=lambda observation: observation)
    experiment = ExperimentConfig(agent, "agentkit:catch", 10, run_directory=tmp_path / "run")
    with pytest.raises(SpecError, match=r"features \[B, D\]"):
        run(experiment)
    assert not (tmp_path / "run").exists()


def test_an_agent_with_a_torso_still_needs_one_reward() -> None:
    """The torso says nothing of rewards, so the agent's own loss gets them."""
    agent = registry.module("dqn").make_agent(torso=own_torso)
    spec = spec_of("dqn", 4, rewards={"a": specs.Array((), np.float32), "b": specs.Array((), np.float32)})
    with pytest.raises(SpecError, match="dqn needs one reward"):
        check_fit(ExperimentConfig(agent, "agentkit:catch", 10), spec)
