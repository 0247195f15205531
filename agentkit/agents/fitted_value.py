"""What on-policy agents share that fit their value network apart from the policy, by several epochs of minibatches.

Policy and value have parameters of their own here, an `ActorCritic` whose critic is the value network, so that a fit
of the value leaves the policy as its own step made it. See `on_policy` for all else, and `learning.natural_gradient`
for what some of them do with the policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.agents.checks import check_counts, check_positive
from agentkit.agents.on_policy import Networks, OnPolicyConfig, Progress, Rows, learn_from_segments
from agentkit.learning import ActorCritic, NaturalGradient, Update, adam, descend, natural_gradient, run_epochs
from agentkit.types import Nest


@dataclasses.dataclass(frozen=True)
class FittedValueConfig(OnPolicyConfig):
    """Settings that each of these agents has; `learning_rate` and `max_grad_norm` are of the value's fit, by Adam.

    Attributes:
        num_value_epochs: passes of the value's fit over the data of an update.
        num_minibatches: gradient steps on the value per epoch; divides batch_size * segment_length.
    """

    num_value_epochs: int = 10
    num_minibatches: int = 4

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_counts(self, "num_value_epochs", "num_minibatches")


@dataclasses.dataclass(frozen=True)
class NaturalConfig(FittedValueConfig):
    """Settings of those whose policy follows the natural gradient.

    Attributes:
        cg_iterations: of conjugate gradients, each a product with the Fisher matrix.
        damping: times the identity is added to the Fisher matrix.
    """

    cg_iterations: int = 10
    damping: float = 0.1

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_positive(self, "damping")
        check_counts(self, "cg_iterations")


def make_networks(environment_spec: specs.EnvironmentSpec, config: FittedValueConfig) -> Networks:
    """As `on_policy.make_networks`, but that policy and value share nothing; ``params`` are an `ActorCritic`."""
    actions = environment_spec.actions
    nets.check_policy_actions(actions, "A policy-gradient agent")

    def distribution(observation: Nest) -> Any:
        features = nets.torso(observation)
        return nets.policy_head(features, actions, config.hidden_sizes, config.initial_std, observation)

    def value(observation: Nest) -> jax.Array:
        return nets.orthogonal_mlp(nets.torso(observation), config.hidden_sizes, 1, activation=jnp.tanh)[:, 0]

    both = ActorCritic(*(nets.network(network, environment_spec.observations) for network in (distribution, value)))

    def init(key: jax.Array) -> ActorCritic:
        policy_key, value_key = jax.random.split(key)
        return ActorCritic(both.policy.init(policy_key), both.critic.init(value_key))

    def apply(params: ActorCritic, observation: Nest) -> tuple[Any, jax.Array]:
        return both.policy.apply(params.policy, observation), both.critic.apply(params.critic, observation)

    return Networks(init, apply, nets.sample_to_action(actions), environment_spec.observations)


class ValueFit(NamedTuple):
    """A regression of the value network on its targets.

    Attributes:
        init: ``params -> opt_state``.
        fit: ``(params, opt_state, rows, key) -> (params, opt_state, value_loss [])``, the loss in mean over the steps.
    """

    init: Callable[[ActorCritic], Any]
    fit: Callable[[ActorCritic, Any, Rows, jax.Array], tuple[ActorCritic, Any, jax.Array]]


def value_fit(networks: Networks, config: FittedValueConfig) -> ValueFit:
    """Adam on 0.5 (v - target)^2, some epochs of minibatches."""
    optimizer = adam(1.0, config.max_grad_norm)

    def fit(params: ActorCritic, opt_state: Any, rows: Rows, key: jax.Array) -> tuple[ActorCritic, Any, jax.Array]:
        def loss(critic: Any, minibatch: Rows) -> jax.Array:
            _, value = networks.apply(params._replace(critic=critic), minibatch.observation)
            return losses.masked_mean(0.5 * jnp.square(value - minibatch.target), minibatch.mask)

        def step(learned: tuple[Any, Any], minibatch: Rows) -> tuple[tuple[Any, Any], dict[str, jax.Array]]:
            value_loss, grads = jax.value_and_grad(loss)(learned[0], minibatch)
            return descend(optimizer, grads, *learned, config.learning_rate), {"value_loss": value_loss}

        (critic, opt_state), metrics = run_epochs(
            step,
            (params.critic, opt_state),
            rows,
            key,
            num_epochs=config.num_value_epochs,
            num_minibatches=config.num_minibatches,
        )
        return params._replace(critic=critic), opt_state, metrics["value_loss"]

    return ValueFit(lambda params: optimizer.init(params.critic), fit)


def natural_direction(
    networks: Networks, config: NaturalConfig, params: ActorCritic, rows: Rows, gradient: Any
) -> tuple[NaturalGradient, Callable[[Any], jax.Array]]:
    """The natural gradient of the policy on these rows.

    Args:
        networks: of policy and value.
        config: says how to solve for it.
        params: of the policy that acted.
        rows: in mean over which, where there is an action, policies are compared.
        gradient: of what is to be climbed, or descended, by the policy's parameters.

    Returns:
        It, and ``policy parameters -> KL []`` from the policy of `params` to theirs, in mean over the rows.
    """
    old, _ = networks.apply(params, rows.observation)

    def divergence(policy: Any) -> jax.Array:
        new, _ = networks.apply(params._replace(policy=policy), rows.observation)
        return losses.masked_mean(old.kl(new), rows.mask)

    return natural_gradient(divergence, params.policy, gradient, config.cg_iterations, config.damping), divergence


PolicyStep = Callable[[ActorCritic, Rows], tuple[Any, dict[str, jax.Array]]]
"""``(params, rows) -> (policy parameters, metrics)``: a step that needs no optimiser."""


def step_and_fit(networks: Networks, config: FittedValueConfig, step: PolicyStep) -> Update:
    """For each batch one step of the policy on all of its rows, then a fit of the value."""
    value = value_fit(networks, config)

    def improve(
        params: ActorCritic, opt_state: Any, rows: Rows, progress: Progress
    ) -> tuple[ActorCritic, Any, dict[str, jax.Array]]:
        policy, metrics = step(params, rows)
        params, opt_state, value_loss = value.fit(params._replace(policy=policy), opt_state, rows, progress.key)
        return params, opt_state, {**metrics, "value_loss": value_loss}

    return learn_from_segments(networks, config, value.init, improve)
