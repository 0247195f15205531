"""Networks of a user's own that an agent cannot use are refused before a run begins, in words, for every agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks, specs
from agentkit.agents import dqn, ppo, registry, sac
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.checks.agent_fits import check_fit
from tests.agents import spaces

Change = Callable[[jax.Array], jax.Array]


def spec_for(name: str) -> specs.EnvironmentSpec:
    return spaces.spec_for(name, specs.Array((5,), np.float32))


def check(name: str, change: Callable[[Any], Any]) -> None:
    """Checks the agent with its own networks after a change, as a run does first."""
    module = registry.module(name)

    def make_networks(environment_spec: Any, config: Any) -> Any:
        return change(module.make_networks(environment_spec, config))

    experiment = ExperimentConfig(module.make_agent(make_networks=make_networks), "agentkit:catch", 10)
    check_fit(experiment, spec_for(name))


def after(function: Callable[..., Any], change: Change) -> Callable[..., Any]:
    return lambda *inputs: jax.tree.map(change, function(*inputs))


def changes(made: Any, change: Change) -> list[tuple[str, Any]]:
    """The networks with a change of the outputs of one part each, and that part's name."""
    if isinstance(made, networks.PolicyValue):
        return [(part, made._replace(network=new)) for part, new in changes(made.network, change)]
    if isinstance(made, networks.RecurrentNetwork):

        def step(*inputs: Any) -> Any:
            outputs, state = made.step(*inputs)
            return jax.tree.map(change, outputs), state

        return [("whose step returns", made._replace(step=step))]
    methods = ("logits", "outputs", "predict", "q_values", "behaviour", "critic", "mix")
    if parts := {method for method in methods if method in made._fields and callable(getattr(made, method))}:
        return [
            (f"whose {part} returns", made._replace(**{part: after(getattr(made, part), change)}))
            for part in sorted(parts)
        ]
    if isinstance(made, networks.Network):
        return [("that return", made._replace(apply=after(made.apply, change)))]
    found = {part: changes(getattr(made, part), change)[0][1] for part in made._fields if is_network(made, part)}
    assert found
    return [(f"whose {part} returns", made._replace(**{part: new})) for part, new in found.items()]


def is_network(made: Any, part: str) -> bool:
    """Whether it is compared by itself: recurrent critics take what their agent alone knows."""
    recurrent = part == "policy" and isinstance(getattr(made, part), networks.RecurrentNetwork)
    return recurrent or isinstance(getattr(made, part), networks.Network)


def twice(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x, x], axis=-1) if x.ndim else x


@pytest.mark.parametrize("name", registry.names())
def test_outputs_of_another_shape_are_refused(name: str) -> None:
    made = registry.module(name).make_agent().make_networks(spec_for(name))
    for number, (words, _) in enumerate(changes(made, twice)):
        with pytest.raises(SpecError, match=f"{name} needs networks .*{words}.* found"):
            check(name, lambda stock, number=number: changes(stock, twice)[number][1])


@pytest.mark.parametrize("name", registry.names())
def test_another_type_and_a_missing_part_are_refused_and_the_agents_own_is_not(name: str) -> None:
    check(name, lambda made: made)
    with pytest.raises(SpecError, match=f"{name} needs networks of the type .*, found builtins.NoneType"):
        check(name, lambda made: None)
    made = registry.module(name).make_agent().make_networks(spec_for(name))
    for part in [part for part in made._fields if is_network(made, part)]:
        expected = rf"networks.{part}: expected a networks.\w*Network, found builtins.NoneType"
        with pytest.raises(SpecError, match=expected):
            check(name, lambda made, part=part: made._replace(**{part: None}))


def add_axis(x: jax.Array) -> jax.Array:
    return x[..., None]


def test_values_with_an_axis_too_many_are_refused_where_they_would_be_broadcast() -> None:
    """[B, 1] less [B] is [B, B]: such a critic would learn nonsense in silence."""
    with pytest.raises(SpecError, match=r"sac needs networks whose critic returns \[1\] .* found \[1, 1\]"):
        check("sac", lambda made: made._replace(critic=made.critic._replace(apply=after(made.critic.apply, add_axis))))


def test_outputs_of_segments_are_looked_at_too() -> None:
    """An `unroll` of other outputs than `step` is nothing that a single observation would show."""

    def change(made: Any) -> Any:
        def unroll(*inputs: Any) -> Any:
            outputs, state = made.unroll(*inputs)
            return twice(outputs), state

        return made._replace(unroll=unroll)

    with pytest.raises(SpecError, match=r"r2d2 needs networks whose unroll returns \[1, 2, 3\].* found \[1, 2, 6\]"):
        check("r2d2", change)


def test_what_can_only_be_seen_by_learning_is_refused() -> None:
    """A model of another size says the right things of an observation, and nothing of what it returns itself."""

    def change(made: Any) -> Any:
        return made._replace(step=lambda *inputs: made.step(*inputs)[0])

    with pytest.raises(SpecError, match="gumbel_muzero does not work with the networks of your own: acting fails"):
        check("gumbel_muzero", change)


@pytest.mark.full
def test_own_code_may_broadcast_and_use_another_library(tmp_path: Any) -> None:
    """What a user's functions do inside is theirs."""

    def make_networks(environment_spec: Any, config: Any) -> networks.Network:
        size = environment_spec.actions.num_values

        def init(key: jax.Array) -> Any:
            return {"w": 0.1 * jax.random.normal(key, (50, size)), "b": jnp.zeros(size)}

        def apply(params: Any, observation: Any) -> jax.Array:
            return observation.reshape(observation.shape[0], -1) @ params["w"] + params["b"]

        return networks.Network(init, apply)

    config = dqn.Config(min_replay_size=20, batch_size=8, replay_size=100)
    with jax.numpy_rank_promotion("allow"):
        experiment = ExperimentConfig(dqn.make_agent(config, make_networks=make_networks), "agentkit:catch", 30)
        assert run(experiment).updates > 0


def test_images_may_have_networks_of_ones_own_without_an_encoder() -> None:
    spec = spec_for("sac")._replace(observations=specs.BoundedArray((10, 10, 3), np.uint8, 0, 255))

    def make_networks(environment_spec: Any, config: Any) -> Any:
        return sac.make_networks(environment_spec, config)

    check_fit(ExperimentConfig(sac.make_agent(make_networks=make_networks), "agentkit:catch", 10), spec)


def test_a_refused_run_leaves_no_folder(tmp_path: Any) -> None:
    agent = ppo.make_agent(make_networks=lambda environment_spec, config: None)
    with pytest.raises(SpecError, match="ppo needs networks of the type"):
        run(ExperimentConfig(agent, "agentkit:catch", 10, run_directory=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
