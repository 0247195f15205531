"""A critic that is fitted and a policy that climbs it or is weighed by it: the update of DDPG, TD3, D4PG, CRR, IQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.learning.learner import Params, TargetUpdate, Update, UpdateOutput, adam, optimizer_step
from agentkit.networks import PolicyCritic
from agentkit.types import Array, LossOutput, ReplaySample

CriticLoss = Callable[[Params, PolicyCritic, ReplaySample, jax.Array], LossOutput]
"""``(critic_params, targets, batch, key) -> LossOutput``, with targets the lagged policy and critic."""

PolicyLoss = Callable[..., Array]
"""``(policy_params, critic_params, batch) -> float32 []``; where it draws, with a PRNG key as fourth argument."""


class ActorCriticLosses(NamedTuple):
    """What an algorithm of this family minimises.

    Attributes:
        critic: the critic's loss.
        policy: the policy's, such as minus the critic's value of its actions.
        draws: whether the policy's loss draws something.
    """

    critic: CriticLoss
    policy: PolicyLoss
    draws: bool = False


class ActorCriticState(NamedTuple):
    """The training state of `deterministic_actor_critic`.

    Attributes:
        params: of policy and critic.
        targets: their lagged copies.
        opt_states: their optimisers' states.
        policy_loss: of the newest policy step, float32 ``[]``; kept for the log.
        key: PRNG key ``uint32[2]``.
        num_updates: of the critic, int32 ``[]``.
    """

    params: PolicyCritic
    targets: PolicyCritic
    opt_states: PolicyCritic
    policy_loss: Array
    key: jax.Array
    num_updates: Array


def deterministic_actor_critic(
    losses: ActorCriticLosses,
    init_params: PolicyCritic,
    optimizers: PolicyCritic,
    target_update: TargetUpdate,
    policy_period: int = 1,
) -> Update:
    """A step on the critic at each update; on the policy and the targets at each `policy_period`-th.

    The policy climbs the critic as that has just become (Lillicrap et al. 2016, algorithm 1; with a
    `policy_period` Fujimoto et al. 2018, algorithm 1).

    Args:
        losses: of critic and policy.
        init_params: ``key -> params`` each.
        optimizers: an optax transformation each.
        target_update: how both targets follow, counted in steps of the policy.
        policy_period: d, critic steps for each policy step.

    Returns:
        An `Update` that publishes the policy under the name "policy".

    Raises:
        ConfigError: the period is less than 1.
    """
    if policy_period < 1:
        raise ConfigError(f"The policy's update period must be at least 1, found {policy_period}.")

    def init(key: jax.Array) -> ActorCriticState:
        key, policy_key, critic_key = jax.random.split(key, 3)
        params = PolicyCritic(init_params.policy(policy_key), init_params.critic(critic_key))
        opt_states = PolicyCritic(*(optimizer.init(p) for optimizer, p in zip(optimizers, params, strict=True)))
        targets = jax.tree.map(jnp.copy, params)
        return ActorCriticState(params, targets, opt_states, jnp.zeros(()), key, jnp.zeros((), jnp.int32))

    def improve_policy(state: ActorCriticState, batch: ReplaySample) -> ActorCriticState:
        critic = state.params.critic
        step_number = state.num_updates // policy_period
        # Another key than any of the critic's, whose numbers are not negative.
        drawn = (jax.random.fold_in(state.key, -state.num_updates),) if losses.draws else ()

        def improve(policy: Params, opt_state: Any, targets: PolicyCritic, _: Array) -> tuple:
            def objective(policy: Params) -> tuple[Array, Array]:
                loss = losses.policy(policy, critic, batch, *drawn)
                return loss, loss

            policy, opt_state, loss = _minimize(objective, policy, opt_state, optimizers.policy)
            return policy, opt_state, target_update(PolicyCritic(policy, critic), targets, step_number), loss

        # What a conditional gives back it copies, also where it is as before: so no more than what may change.
        moving = (state.params.policy, state.opt_states.policy, state.targets, state.policy_loss)
        if policy_period > 1:
            due = state.num_updates % policy_period == 0
            policy, opt_state, targets, loss = jax.lax.cond(due, improve, lambda *before: before, *moving)
        else:
            policy, opt_state, targets, loss = improve(*moving)
        params, opt_states = PolicyCritic(policy, critic), state.opt_states._replace(policy=opt_state)
        return state._replace(params=params, targets=targets, opt_states=opt_states, policy_loss=loss)

    def update(state: ActorCriticState, batch: ReplaySample) -> tuple[ActorCriticState, UpdateOutput]:
        key = jax.random.fold_in(state.key, state.num_updates)  # As in `sgd`: free, where the loss draws nothing.

        def objective(critic: Params) -> tuple[Array, LossOutput]:
            output = losses.critic(critic, state.targets, batch, key)
            return output.loss, output

        critic, opt_state, output = _minimize(
            objective, state.params.critic, state.opt_states.critic, optimizers.critic
        )
        params, opt_states = state.params._replace(critic=critic), state.opt_states._replace(critic=opt_state)
        fitted = state._replace(params=params, opt_states=opt_states, num_updates=state.num_updates + 1)
        new_state = improve_policy(fitted, batch)
        metrics = {"critic_loss": output.loss, "policy_loss": new_state.policy_loss, **output.metrics}
        return new_state, UpdateOutput(metrics, output.priorities)

    return Update(init, update, lambda state: {"policy": state.params.policy})


def adam_actor_critic(
    losses: ActorCriticLosses,
    networks: Any,
    learning_rates: tuple[float, float],
    target_update: TargetUpdate,
    policy_period: int = 1,
) -> Update:
    """`deterministic_actor_critic` with Adam.

    Args:
        losses: as there.
        networks: have ``policy`` and ``critic``, each with ``init: key -> params``.
        learning_rates: step sizes of policy and critic.
        target_update: as there.
        policy_period: as there.
    """
    init_params = PolicyCritic(networks.policy.init, networks.critic.init)
    return deterministic_actor_critic(
        losses, init_params, PolicyCritic(*map(adam, learning_rates)), target_update, policy_period
    )


def action_value_error(q_tm1: Array, r_t: Array, discount_t: Array, q_t: Array) -> Array:
    """TD errors ``[B]`` of a policy's action values (Sutton 1988; Lillicrap et al. 2016, eq. 4 and 5).

    r + discount * q(s', policy(s')) - q(s, a). Gradients reach `q_tm1` only.
    """
    return jax.lax.stop_gradient(r_t + discount_t * q_t) - q_tm1


def deterministic_policy_loss(policy_at: Callable[..., Array], q_at: Callable[..., Array]) -> PolicyLoss:
    """Minus the mean value of the policy's actions (Silver et al. 2014; its gradient: Lillicrap et al. 2016, eq. 6).

    Args:
        policy_at: ``(policy_params, observation [B, ...]) -> action [B, A]``.
        q_at: ``(critic_params, observation, action) -> q [B]``.
    """

    def loss(policy: Params, critic: Params, batch: ReplaySample) -> Array:
        observation = batch.data.observation
        return -jnp.mean(q_at(critic, observation, policy_at(policy, observation)))

    return loss


def _minimize(
    objective: Callable[[Params], tuple[Array, Any]], params: Params, opt_state: Any, optimizer: Any
) -> tuple[Params, Any, Any]:
    """Parameters and optimiser state after one step, and what the objective returns beside its value."""
    grads, extra = jax.grad(objective, has_aux=True)(params)
    return *optimizer_step(optimizer, grads, params, opt_state), extra
