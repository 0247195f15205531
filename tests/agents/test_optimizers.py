"""Optimisers and schedules of a user's own: each agent takes them as they are, and what it cannot take is refused."""

import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit import envs, networks, specs
from agentkit.agents import a2c, dqn, impala, npg, ppo, registry, reinforce, sac, td3, trpo
from agentkit.agents.common.advantages import Trajectories
from agentkit.agents.common.optimizers import optimizer_of, optimizers_of
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment.config import identity
from agentkit.experiment.config.recipes import decode
from agentkit.learning import adam, objective
from agentkit.types import LossOutput
from tests.agents.on_policy_training import Training
from tests.agents.spaces import environment_of

SCHEDULE = optax.linear_schedule(1e-3, 0.0, 10)


def update_of(agent: Any, name: str) -> Any:
    """The agent's update for an environment that it takes."""
    return agent.make_update(agent.make_networks(specs.make_environment_spec(envs.make(environment_of(name), seed=0))))


def opt_states(agent: Any, name: str) -> list[Any]:
    """The shapes in the states of an agent's optimisers."""
    state = jax.eval_shape(update_of(agent, name).init, jax.ShapeDtypeStruct((2,), np.uint32))
    fields = [field for field in state._fields if field.startswith("opt_state")]
    return jax.tree.leaves([getattr(state, field) for field in fields])


@pytest.mark.one_case
@pytest.mark.parametrize("name", registry.names())
def test_every_agent_takes_an_optimiser(name: str) -> None:
    """Plain gradient descent remembers nothing, as no agent's own optimiser does."""
    make = registry.module(name).make_agent
    assert opt_states(make(), name)
    assert opt_states(make(optimizer=optax.sgd(0.1)), name) == []
    found = []
    assert opt_states(make(optimizer=lambda config: found.append(config) or optax.sgd(0.1)), name) == []
    assert found and all(config == make().config for config in found)


OWN = optax.adam(1.0)
DEFAULT, OTHER = optax.sgd(1.0), optax.sgd(2.0)


def test_one_optimiser_is_for_all_losses_and_a_dict_for_those_that_it_names() -> None:
    both = {"policy": DEFAULT, "critic": OTHER}
    assert optimizers_of(None, None, **both) == both
    assert optimizers_of(OWN, None, **both) == {"policy": OWN, "critic": OWN}
    assert optimizers_of({"critic": OWN}, None, **both) == {"policy": DEFAULT, "critic": OWN}
    assert optimizers_of(lambda config: {"policy": config}, OWN, **both) == {"policy": OWN, "critic": OTHER}
    assert optimizers_of({"policy": lambda config: config}, OWN, **both) == {"policy": OWN, "critic": OTHER}
    assert optimizers_of(lambda: OWN, None, **both) == {"policy": OWN, "critic": OWN}
    assert optimizer_of(functools.partial(lambda x, y=None: x, OWN), "config", DEFAULT) is OWN
    with pytest.raises(UnknownNameError, match="actor"):
        optimizers_of({"actor": OWN}, None, **both)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (1e-3, r"expected an optax.GradientTransformation .* found 0.001\. A learning rate is a setting"),
        ({"policy": "adam"}, "found 'adam'"),
        (optax.adamw, "found adamw itself, which needs learning_rate. Call it, as in optax.adamw"),
        (lambda params, grads: None, "needs params, grads"),
    ],
)
def test_what_is_no_optimiser_is_refused_when_the_agent_is_made(own: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        td3.make_agent(optimizer=own)


def test_a_function_that_makes_no_optimiser_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected an optax.GradientTransformation .* found 3 from .*lambda"):
        update_of(dqn.make_agent(optimizer=lambda config: 3), "dqn")


def test_an_update_of_ones_own_that_takes_no_optimiser_is_refused_beside_one() -> None:
    def make_update(networks: Any, loss: Any, config: Any) -> Any:
        return dqn.make_update(networks, loss, config)

    with pytest.raises(ConfigError, match=r"optimizer: .*make_update, which would use it, takes no argument"):
        dqn.make_agent(make_update=make_update, optimizer=OWN)
    with pytest.raises(ConfigError, match=r"estimate_advantages: expected a function \(segments, config\), found"):
        ppo.make_agent(estimate_advantages=lambda reward, value, mask: value)


@pytest.mark.full
@pytest.mark.parametrize("module", [ppo, a2c, impala])
def test_the_learning_rate_of_the_config_is_not_applied_to_ones_own_optimiser(module: Any) -> None:
    """The agent's own optimiser, given as one's own, does the same whatever the config says."""
    config = module.Config(hidden_sizes=(8,), segment_length=8)
    if module is a2c:
        own = optax.chain(optax.clip_by_global_norm(0.5), optax.rmsprop(7e-4, 0.99, 1e-10, initial_scale=1.0))
    else:
        own = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    params = []
    for agent in (
        module.make_agent(config),
        module.make_agent(dataclasses.replace(config, learning_rate=0.5), optimizer=own),
    ):
        training = Training(agent, "agentkit:catch", 2)
        start = training.state.variables.params
        _, output = training.compiled(training.state, training.next_batch())
        params.append(training.compiled(training.state, training.next_batch())[0].variables.params)
    assert ("learning_rate" in output.metrics) is False
    for stock, found, before in zip(*map(jax.tree.leaves, (*params, start)), strict=True):
        np.testing.assert_allclose(found, stock, rtol=1e-3, atol=1e-6)
        assert np.any(np.asarray(found) != before)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("module", "names"), [(reinforce, ["policy"]), (reinforce, ["value"]), (reinforce, []), (npg, []), (trpo, [])]
)
def test_losses_without_an_optimiser_keep_the_agents_with_its_learning_rate(module: Any, names: list[str]) -> None:
    """The agent's own optimiser, given for some losses, leaves the update as it is."""
    config = module.Config(hidden_sizes=(8,), segment_length=8, num_value_epochs=2)
    own = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    params = []
    for optimizer in (None, dict.fromkeys(names, own)):
        training = Training(module.make_agent(config, optimizer=optimizer), "agentkit:catch", 2)
        params.append(training.compiled(training.state, training.next_batch())[0].variables.params)
    for stock, found in zip(*map(jax.tree.leaves, params), strict=True):
        np.testing.assert_allclose(found, stock, rtol=1e-3, atol=1e-6)


def test_an_optimiser_that_has_a_name_is_made_again_from_its_record() -> None:
    given = {"policy": functools.partial(optax.adam, 1e-4), "critic": td3_critic_optimizer}
    agent = td3.make_agent(optimizer=given)
    record = identity.describe_agent(agent, 1)["agent_parts"]
    again = decode(record["make_update"], agent.config, imports=("tests",))
    found = again.of_features.make_update.keywords["optimizer"]
    assert found["critic"] is td3_critic_optimizer and found["policy"].func is optax.adam
    assert found["policy"].args == (1e-4,)


def td3_critic_optimizer(config: td3.Config) -> optax.GradientTransformation:
    return optax.adamw(config.learning_rate)


def test_an_optimiser_without_a_name_is_said_to_have_none() -> None:
    record = identity.describe_agent(dqn.make_agent(optimizer=optax.adamw(3e-4)), 1)["agent_parts"]
    with pytest.raises(ConfigError, match="function that was made inside of a function"):
        decode(record["make_update"], dqn.Config(), imports=("optax",))


def test_a_schedule_of_optax_is_taken_and_counts_updates() -> None:
    optimizer = adam(dqn.Config(learning_rate=SCHEDULE).learning_rate)
    state = optimizer.init(jnp.zeros(1))
    sizes = []
    for updates in (0, 5, 10):
        told = adam_told(state, updates)
        sizes.append(float(-optimizer.update(jnp.ones(1), told)[0][0]))
    np.testing.assert_allclose(sizes, [1e-3, 5e-4, 0.0], atol=1e-7)


def adam_told(state: Any, updates: int) -> Any:
    from agentkit.learning import tell_counts

    return tell_counts(state, steps=np.int32(1_000), updates=np.int32(updates))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"epsilon": SCHEDULE},
            'epsilon must be a schedule by="steps", found <function .*: an actor counts no updates',
        ),
        (
            {"discount": SCHEDULE},
            r"discount must be in \[0, 1\], found <.* takes no schedule; .*learning_rate",
        ),
        ({"learning_rate": optax.adam}, "learning_rate must be a number or a schedule: .* one of optax's"),
        ({"learning_rate": optax.constant_schedule(-1.0)}, "learning_rate must be > 0 and finite, found <function"),
    ],
)
def test_schedules_that_a_setting_cannot_take_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dqn.Config(**settings)


@pytest.mark.parametrize("second", ["target_params", "coefficients", "entropy_cost"])
def test_a_loss_of_an_earlier_form_is_told_the_new_one(second: str) -> None:
    loss = {
        "target_params": lambda params, target_params, batch, key: None,
        "coefficients": lambda params, coefficients, batch: None,
        "entropy_cost": lambda params, entropy_cost, rows: None,
    }[second]
    with pytest.raises(
        SpecError, match=rf"takes \(params, state, batch, key\), found \(params, {second}, .* now: take"
    ):
        jax.grad(objective(loss), has_aux=True)(1.0, (), (), ())


def test_a_policys_loss_without_an_entropy_is_told_so() -> None:
    with pytest.raises(SpecError, match=r"must return a metric 'entropy', which the update needs, found \['a'\]"):
        jax.grad(objective(lambda x: LossOutput(x, {"a": x}), metrics=["entropy"]), has_aux=True)(1.0)


def test_a_temperatures_loss_of_ones_own_is_the_one_that_is_descended() -> None:
    """The paper's: its gradient by log alpha is alpha times that of agentkit's."""
    made = networks.ActorCriticNetworks(*[networks.Network(None, None)] * 2, (3,))
    log_alpha, entropy = jnp.log(0.2), jnp.float32(-1.0)
    own, stock = (
        jax.grad(objective(module.make_losses(made, sac.Config()).temperature), has_aux=True)(
            log_alpha, (), (), entropy
        )[0]
        for module in (importlib.import_module("examples.edits.sac_temperature_loss"), sac)
    )
    np.testing.assert_allclose([stock, own], [2.0, 0.4], rtol=1e-6)


def test_returns_to_go_are_gae_of_lambda_one() -> None:
    rng = np.random.default_rng(0)
    reward, discount, values = (rng.normal(size=(3, n)).astype(np.float32) for n in (6, 6, 7))
    mask = np.ones((3, 6), np.float32)
    mask[1, 2] = mask[2, 4] = 0.0
    segments = Trajectories(reward, 0.9 * (discount > -1.0) * mask, values, mask)
    edit = importlib.import_module("examples.edits.ppo_returns_to_go")
    found = edit.estimate_advantages(segments, ppo.Config())
    expected = ppo.estimate_advantages(segments, ppo.Config(gae_lambda=1.0))
    np.testing.assert_allclose((found * mask)[mask > 0], np.asarray(expected)[mask > 0], rtol=1e-4, atol=1e-5)
    assert np.abs(ppo.estimate_advantages(segments, ppo.Config(gae_lambda=0.5)) - expected).max() > 0.1


@pytest.mark.full
def test_ppo_learns_from_advantages_of_ones_own() -> None:
    """Without any, its policy has no gradient but the entropy's, which costs nothing."""
    config = ppo.Config(hidden_sizes=(8,), segment_length=8, normalize_advantages="none")
    losses = {}
    for name, own in {"none": lambda segments, config: 0.0 * segments.reward, "stock": None}.items():
        training = Training(ppo.make_agent(config, estimate_advantages=own), "agentkit:catch", 2)
        losses[name] = float(training.learn(training.next_batch())["policy_loss"])
    assert losses["none"] == 0.0 != losses["stock"]


@pytest.mark.full
def test_impalas_targets_may_be_ones_own() -> None:
    def of_one_step(segments: Trajectories, config: impala.Config) -> Any:
        target = segments.reward + segments.discount * segments.values[:, 1:]
        return impala.losses.VTrace(target, 0.0 * target)

    agent = impala.make_agent(impala.Config(hidden_sizes=(8,), segment_length=8), estimate_targets=of_one_step)
    training = Training(agent, "agentkit:catch", 2)
    assert float(training.learn(training.next_batch())["policy_loss"]) == 0.0
