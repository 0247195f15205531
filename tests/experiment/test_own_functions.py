"""Losses, updates and policies of a user's own that an agent cannot use are refused before a run begins."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from agentkit import actors
from agentkit.agents import Transitions, dqn, ppo, registry, sac, td3
from agentkit.agents.addons import with_rnd
from agentkit.agents.common.experience_wrappers import WithRateLimiter
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.replay import MinSize
from tests.experiment.test_own_networks import spec_for

PPO = ppo.make_agent(ppo.Config(segment_length=16, num_minibatches=2))
HERE = r"\(.*test_own_functions.py, line \d+\)"


def check(name: str, **parts: Any) -> None:
    """Checks the agent with these parts, as a run does first."""
    agent = registry.module(name).make_agent(**parts)
    check_fit(ExperimentConfig(agent, "agentkit:catch", 10), spec_for(name))


def no_return(networks: Any, config: Any) -> Any:
    sac.make_losses(networks, config)


def loss_of_two(network: Any, config: Any) -> Any:
    return lambda params, state, batch, key: (jnp.zeros(()), {})


def wrong_shapes(networks: Any, config: Any) -> Any:
    def critic(*_: Any) -> Any:
        return jnp.zeros(3) + jnp.zeros(4)

    return td3.make_losses(networks, config)._replace(critic=critic)


def growing_update(network: Any, loss: Any, config: Any) -> Any:
    made = dqn.make_update(network, loss, config)
    return made._replace(update=lambda state, batch: ((state, 0), made.update(state, batch)[1]))


def drifting_update(network: Any, loss: Any, config: Any) -> Any:
    made = dqn.make_update(network, loss, config)

    def update(state: Any, batch: Any) -> Any:
        new, output = made.update(state._replace(num_updates=jnp.int32(0)), batch)
        return new._replace(num_updates=state.num_updates + 0.5), output

    return made._replace(update=update)


def update_with_a_typed_key(network: Any, loss: Any, config: Any) -> Any:
    made = dqn.make_update(network, loss, config)
    return made._replace(init=lambda key: made.init(key)._replace(key=jax.random.key(0)))


def loss_with(**metrics: Any) -> Any:
    def make_loss(network: Any, config: Any) -> Any:
        stock = dqn.make_loss(network, config)

        def loss(params: Any, state: Any, batch: Any, key: Any) -> Any:
            output = stock(params, state, batch, key)
            own = {name: metric(batch.data) for name, metric in metrics.items()}
            return output._replace(metrics={**output.metrics, **own})

        return loss

    return make_loss


def nothing(*_: Any, evaluation: bool = False) -> Any:
    return None


def policy_of_the_action_alone(network: Any, config: Any, evaluation: bool = False) -> Any:
    return actors.Policy(lambda params, key, observation, state: jnp.int32(0))


def wide_policy(network: Any, config: Any, evaluation: bool = False) -> Any:
    return actors.stateless_policy(lambda params, key, observation: jnp.zeros(2, jnp.int32))


def policy_between(network: Any, config: Any, evaluation: bool = False) -> Any:
    return actors.stateless_policy(lambda params, key, observation: jnp.float32(1.0))


def torch_loss(network: Any, config: Any) -> Any:
    def loss(*_: Any) -> Any:
        raise TypeError("mse_loss(): argument 'input' must be torch.Tensor, not DynamicJaxprTracer")

    return loss


WRONG = {
    "losses without a return": ("sac", {"make_losses": no_return}, "no_return returned None; expected"),
    "a loss of two": ("dqn", {"make_loss": loss_of_two}, "dqn does not work with .*:loss_of_two of your own: learning"),
    "shapes": ("td3", {"make_losses": wrong_shapes}, f"wrong_shapes of your own: learning fails with .* {HERE}"),
    "a growing state": (
        "dqn",
        {"make_update": growing_update},
        "fails with 'the training state changes its shape'",
    ),
    "a metric of each item": (
        "dqn",
        {"make_loss": loss_with(r=lambda data: data.reward)},
        r"learning fails with \"the metric 'r' has the shape \[\d+\], not \[\]: take its mean\"",
    ),
    "a metric by a count's name": (
        "dqn",
        {"make_loss": loss_with(steps=lambda data: data.reward.mean())},
        "the metric 'steps' has the name of a count that the log keeps: give it another",
    ),
    "metrics in metrics": (
        "dqn",
        {"make_loss": loss_with(r=lambda data: {"mean": data.reward.mean()})},
        r"the metric 'r' has the shape {'mean': \[\]}, not \[\]",
    ),
    "no update": ("dqn", {"make_update": nothing}, "make_update: expected a learning.Update of it, found None"),
    "no policy": ("dqn", {"make_policy": nothing}, "make_policy: expected an actors.Policy of it, found None"),
    "an action alone": (
        "dqn",
        {"make_policy": policy_of_the_action_alone},
        r"policy_of_the_action_alone of your own: acting fails with 'act returns \w+, not \(action, state, extras\)'",
    ),
    "two actions": ("dqn", {"make_policy": wide_policy}, r"acting fails with 'actions have the shape \[2\], not \[\]'"),
    "an action between": ("dqn", {"make_policy": policy_between}, "acting fails with 'actions are float32, not int32'"),
    "PyTorch": ("dqn", {"make_loss": torch_loss}, "PyTorch cannot be used here, .* take Haiku, Flax or Equinox"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_told_in_one_line(case: str) -> None:
    name, parts, message = WRONG[case]
    with pytest.raises(SpecError, match=message) as caught:
        check(name, **parts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("experience", "message"),
    [
        (PPO.experience, "dqn does not work with the experience of your own: learning fails with .*linear/w"),
        (None, r"experience: expected an Experience such as agentkit.agents.Transitions\(config\), found None"),
        (Transitions, "experience: expected an Experience .*, found <class '.*Transitions'>"),
    ],
)
def test_an_experience_that_does_not_fit_is_told(experience: Any, message: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=message):
        agent = dataclasses.replace(dqn.make_agent(), experience=experience)
        check_fit(ExperimentConfig(agent, "agentkit:catch", 10), spec_for("dqn"))


def test_an_experience_of_the_same_data_costs_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.experiment.checks.agent_fits.check_works", None)
    longer = dataclasses.replace(PPO, experience=ppo.make_agent(ppo.Config(segment_length=8)).experience)
    check_fit(ExperimentConfig(longer, "agentkit:catch", 10), spec_for("ppo"))
    # Of minibatches that a single environment's segments do not make.
    many = ppo.make_agent(ppo.Config(core_size=4, num_minibatches=4))
    limited = dataclasses.replace(many, experience=WithRateLimiter(many.with_num_envs(8).experience, MinSize(1)))
    for agent in (many, limited):
        check_fit(ExperimentConfig(agent, "agentkit:catch", 10, num_envs=8), spec_for("ppo"))


@pytest.mark.parametrize("name", registry.names())
def test_every_agents_loss_without_a_return_is_told(name: str) -> None:
    part = "make_losses" if hasattr(registry.module(name), "make_losses") else "make_loss"
    with pytest.raises(SpecError, match="nothing returned None"):
        check(name, **{part: nothing})


def test_nothing_is_computed_and_no_folder_made_before_it_is_told(tmp_path: Any) -> None:
    """SAC with such losses used to act for as long as its random steps, in silence."""
    agent = sac.make_agent(sac.Config(hidden_sizes=(4,)), make_losses=no_return)
    with pytest.raises(SpecError, match="no_return returned None") as caught:
        run(ExperimentConfig(agent, "agentkit:point_mass", 10, run_directory=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("make_update", "message"),
    [
        (update_with_a_typed_key, r"key of jax.random.key at .key, .* Keep one of jax.random.PRNGKey"),
        (drifting_update, "state's .num_updates begins as int32 and becomes float32: cast it"),
    ],
)
def test_a_state_that_no_checkpoint_could_restore_is_refused_where_there_are_any(
    make_update: Any, message: str, tmp_path: Any
) -> None:
    agent = dqn.make_agent(make_update=make_update)
    with pytest.raises(SpecError, match=message):
        check_fit(ExperimentConfig(agent, "agentkit:catch", 10, run_directory=tmp_path / "run"), spec_for("dqn"))
    check_fit(ExperimentConfig(agent, "agentkit:catch", 10), spec_for("dqn"))


def test_what_works_is_taken_with_an_add_on_around_it_and_without_compiling() -> None:
    def make_loss(network: Any, config: Any) -> Any:
        stock = dqn.make_loss(network, config)

        def loss(params: Any, state: Any, batch: Any, key: Any) -> Any:
            output = stock(params, state, batch, key)
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                float(output.loss)  # Numbers, which nothing that is traced has.
            return output

        return loss

    check("dqn", make_loss=make_loss)
    spec = spec_for("dqn")
    check_fit(ExperimentConfig(with_rnd(dqn.make_agent(make_loss=make_loss)), "agentkit:catch", 10), spec)
    with jax.disable_jit():
        check("dqn", make_loss=make_loss)
    of_each_item = loss_with(r=lambda data: data.reward)  # Of several updates in one call, the mean is logged.
    check("dqn", config=dqn.Config(updates_per_call=2), make_loss=of_each_item)
