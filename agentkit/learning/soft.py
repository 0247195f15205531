"""Soft critics, a policy that climbs them, and a temperature: the update of SAC, discrete SAC, REDQ and DroQ."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.learning.learner import Params, TargetUpdate, Update, UpdateOutput, adam, optimizer_step, polyak
from agentkit.networks import PolicyCritic
from agentkit.types import Array, LossOutput, ReplaySample

if TYPE_CHECKING:
    import optax


class Bootstrap(NamedTuple):
    """What a soft target is made of.

    Attributes:
        policy: parameters of the policy, which chooses the next action.
        critics: of the lagged critics, which judge it.
        temperature: alpha, float32 ``[]``, what a nat of its entropy is worth.
    """

    policy: Params
    critics: Params
    temperature: Array


class SoftLosses(NamedTuple):
    """What an algorithm of this family minimises.

    Attributes:
        critic: ``(critics, Bootstrap, batch, key) -> LossOutput``.
        policy: ``(policy, critics, temperature [], batch, key) -> (loss [], mean log-probability [])``; the second is
            minus the policy's entropy.
    """

    critic: Callable[[Params, Bootstrap, ReplaySample, jax.Array], LossOutput]
    policy: Callable[[Params, Params, Array, ReplaySample, jax.Array], tuple[Array, Array]]


class Temperature(NamedTuple):
    """How alpha goes.

    Attributes:
        initial: alpha at the start, > 0.
        target_entropy: what the policy's entropy is steered to, in nats; None keeps `initial`.
    """

    initial: float
    target_entropy: float | None


class SoftState(NamedTuple):
    """The training state of `soft_actor_critic`.

    Attributes:
        policy: policy parameters.
        critics: parameters of all critics.
        target_critics: their lagged copies.
        log_temperature: log alpha, float32 ``[]``.
        opt_states: optimiser states of policy, critics, temperature.
        key: PRNG key ``uint32[2]``.
        num_updates: of the critics, int32 ``[]``.
        measured: the metrics of the newest policy step, kept for the log; ``()`` where each update has one.
    """

    policy: Any
    critics: Any
    target_critics: Any
    log_temperature: Array
    opt_states: tuple[Any, Any, Any]
    key: jax.Array
    num_updates: Array
    measured: Any


def soft_actor_critic(
    losses: SoftLosses,
    init_params: PolicyCritic,
    num_critics: int,
    optimizer: optax.GradientTransformation,
    target_update: TargetUpdate,
    temperature: Temperature,
    policy_period: int = 1,
) -> Update:
    """A step on the critics at each update; on policy and temperature at each `policy_period`-th.

    The three gradients of an update are taken at the parameters before it (Haarnoja et al. 2018, 1812.05905,
    algorithm 1; with a `policy_period` Chen et al. 2021, 2101.05982, algorithm 1).

    Args:
        losses: of critics and policy.
        init_params: ``key -> params`` of the policy, ``keys [num_critics, 2] -> params`` of the critics.
        num_critics: how many keys they take.
        optimizer: an optax transformation, for each of the three.
        target_update: how the target critics follow, at each update.
        temperature: its start, and what it is steered to.
        policy_period: G, critic steps for each policy step.

    Returns:
        An `Update` that publishes the policy under the name "policy".

    Raises:
        ConfigError: the period is less than 1.
    """
    if policy_period < 1:
        raise ConfigError(f"The policy's update period must be at least 1, found {policy_period}.")

    def init(key: jax.Array) -> SoftState:
        keys = jax.random.split(key, 2 + num_critics)
        policy, critics = init_params.policy(keys[1]), init_params.critic(keys[2:])
        log_temperature = jnp.log(jnp.asarray(temperature.initial, jnp.float32))
        opt_states = (optimizer.init(policy), optimizer.init(critics), optimizer.init(log_temperature))
        targets, zero = jax.tree.map(jnp.copy, critics), jnp.zeros((), jnp.int32)
        measured = {name: jnp.zeros(()) for name in ("policy_loss", "entropy")} if policy_period > 1 else ()
        return SoftState(policy, critics, targets, log_temperature, opt_states, keys[0], zero, measured)

    def improve_policy(state: SoftState, batch: ReplaySample, key: jax.Array) -> tuple[SoftState, dict[str, Array]]:
        (loss, log_prob), grads = jax.value_and_grad(losses.policy, has_aux=True)(
            state.policy, state.critics, jnp.exp(state.log_temperature), batch, key
        )
        policy_opt, critics_opt, temperature_opt = state.opt_states
        policy, policy_opt = optimizer_step(optimizer, grads, state.policy, policy_opt)
        log_temperature = state.log_temperature
        if temperature.target_entropy is not None:
            grad = temperature_gradient(log_prob, temperature.target_entropy)
            log_temperature, temperature_opt = optimizer_step(optimizer, grad, log_temperature, temperature_opt)
        improved = state._replace(
            policy=policy, log_temperature=log_temperature, opt_states=(policy_opt, critics_opt, temperature_opt)
        )
        return improved, {"policy_loss": loss, "entropy": -log_prob}

    def update(state: SoftState, batch: ReplaySample) -> tuple[SoftState, UpdateOutput]:
        key, critic_key, policy_key = jax.random.split(state.key, 3)
        alpha = jnp.exp(state.log_temperature)
        bootstrap = Bootstrap(state.policy, state.target_critics, alpha)

        def objective(critics: Params) -> tuple[Array, LossOutput]:
            output = losses.critic(critics, bootstrap, batch, critic_key)
            return output.loss, output

        grads, output = jax.grad(objective, has_aux=True)(state.critics)
        critics, critics_opt = optimizer_step(optimizer, grads, state.critics, state.opt_states[1])
        num_updates = state.num_updates + 1
        if policy_period == 1:
            improved, measured = improve_policy(state, batch, policy_key)
        else:
            improved, measured = _at_times(num_updates % policy_period == 0, improve_policy, state, batch, policy_key)
            improved = improved._replace(measured=measured)
        new_state = improved._replace(
            critics=critics,
            target_critics=target_update(critics, state.target_critics, num_updates),
            opt_states=(improved.opt_states[0], critics_opt, improved.opt_states[2]),
            key=key,
            num_updates=num_updates,
        )
        metrics = {"critic_loss": output.loss, **output.metrics, **measured, "temperature": alpha}
        return new_state, UpdateOutput(metrics, output.priorities)

    return Update(init, update, lambda state: {"policy": state.policy})


def adam_soft_actor_critic(
    losses: SoftLosses,
    init_params: PolicyCritic,
    num_critics: int,
    config: Any,
    target_entropy: float,
    policy_period: int = 1,
) -> Update:
    """`soft_actor_critic` with Adam and targets that follow at each update; `target_entropy` is in nats.

    Args as there, but for `config`, which has `learning_rate`, `tau`, `initial_temperature` and `learn_temperature`.
    """
    temperature = Temperature(config.initial_temperature, target_entropy if config.learn_temperature else None)
    optimizer, follow = adam(config.learning_rate), polyak(config.tau)
    return soft_actor_critic(losses, init_params, num_critics, optimizer, follow, temperature, policy_period)


def temperature_gradient(log_prob: Array, target_entropy: float) -> Array:
    """The gradient ``[]`` of -log_alpha (log_prob + target_entropy) by log_alpha (Haarnoja et al. 2018, eq. 18).

    Alpha rises while the entropy, minus the mean of `log_prob`, is below the target. The paper's loss has alpha in
    place of its logarithm, the authors' code as it is here.
    """
    return -(log_prob + target_entropy)


def soft_target(r_t: Array, discount_t: Array, q_t: Array, log_prob_t: Array, temperature: Array) -> Array:
    """Targets r + discount * (q(s', a') - alpha log pi(a'|s')), ``[B]`` (1812.05905, eq. 2 and 3); no gradient.

    Args:
        r_t: ``[B]``.
        discount_t: what multiplies the soft value, ``[B]``.
        q_t: of an action of the policy, or the mean over its actions, ``[B]``.
        log_prob_t: of the same, ``[B]``.
        temperature: alpha, ``[]``.
    """
    return jax.lax.stop_gradient(r_t + discount_t * (q_t - temperature * log_prob_t))


def _at_times(
    due: Array, improve: Callable[..., Any], state: SoftState, batch: ReplaySample, key: jax.Array
) -> tuple[SoftState, dict[str, Array]]:
    """`improve` where it is due, else the state and the metrics as they were.

    What a conditional gives back it copies, also where it is as before: so no more than what may change.
    """

    def moving(state: SoftState, measured: dict[str, Array]) -> tuple[Any, ...]:
        return state.policy, state.log_temperature, (state.opt_states[0], state.opt_states[2]), measured

    changed = jax.lax.cond(due, lambda: moving(*improve(state, batch, key)), lambda: moving(state, state.measured))
    policy, log_temperature, (policy_opt, temperature_opt), measured = changed
    opt_states = (policy_opt, state.opt_states[1], temperature_opt)
    return state._replace(policy=policy, log_temperature=log_temperature, opt_states=opt_states), measured
