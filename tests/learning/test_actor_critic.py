"""Two quadratic bowls in place of networks: the critic falls to a target, the policy climbs to the critic."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.errors import ConfigError
from agentkit.learning import (
    ActorCriticLosses,
    PolicyCritic,
    action_value_error,
    adam_actor_critic,
    deterministic_actor_critic,
    deterministic_policy_loss,
    polyak,
)
from agentkit.networks import Network
from agentkit.types import LossOutput, ReplaySample, Transition

KEY = jax.random.PRNGKey(0)
LOSSES = ActorCriticLosses(
    critic=lambda critic, targets, batch, key: LossOutput(
        0.5 * (critic - batch - targets.policy) ** 2,
        {"noise": jax.random.normal(key), "seen": targets.critic},
        jnp.full(2, critic),
    ),
    policy=lambda policy, critic, batch: 0.5 * (policy - critic) ** 2,
)


def make(policy_period: int = 1) -> Any:
    init = PolicyCritic(lambda key: jnp.float32(1.0), lambda key: jnp.float32(2.0))
    optimizers = PolicyCritic(optax.sgd(0.5), optax.sgd(0.25))
    return deterministic_actor_critic(LOSSES, init, optimizers, polyak(0.1), policy_period)


def test_critic_then_policy_then_targets_against_the_recursion_by_hand() -> None:
    update = make()
    state = update.init(KEY)
    policy, critic, target_policy, target_critic = 1.0, 2.0, 1.0, 2.0
    for batch in (3.0, -1.0, 0.5):
        loss, priority, seen = 0.5 * (critic - batch - target_policy) ** 2, critic, target_critic
        critic -= 0.25 * (critic - batch - target_policy)
        policy_loss = 0.5 * (policy - critic) ** 2  # The policy climbs the new critic.
        policy -= 0.5 * (policy - critic)
        target_policy += 0.1 * (policy - target_policy)
        target_critic += 0.1 * (critic - target_critic)
        state, output = update.update(state, jnp.float32(batch))
        np.testing.assert_allclose(state.params, [policy, critic], rtol=1e-6)
        np.testing.assert_allclose(state.targets, [target_policy, target_critic], rtol=1e-6)
        np.testing.assert_allclose(output.metrics["critic_loss"], loss, rtol=1e-6)
        np.testing.assert_allclose(output.metrics["policy_loss"], policy_loss, rtol=1e-6)
        np.testing.assert_allclose(output.metrics["seen"], seen, rtol=1e-6)
        np.testing.assert_allclose(output.priorities, [priority, priority], rtol=1e-6)
    assert int(state.num_updates) == 3
    np.testing.assert_array_equal(update.variables(state)["policy"], state.params.policy)


def test_policy_and_targets_move_at_every_third_update_only() -> None:
    update = make(policy_period=3)
    state, moved = update.init(KEY), []
    step = jax.jit(update.update)
    for _ in range(7):
        before = state
        state, _ = step(state, jnp.float32(3.0))
        assert state.params.critic != before.params.critic
        changes = {
            bool(state.params.policy != before.params.policy),
            bool(state.targets.policy != before.targets.policy),
            bool(state.targets.critic != before.targets.critic),
            bool(state.policy_loss != before.policy_loss),
        }
        assert len(changes) == 1
        moved += changes
    assert moved == [False, False, True, False, False, True, False]


def test_the_losss_key_is_new_at_each_update_and_depends_on_the_seed() -> None:
    update = make()
    drawn = []
    for seed in (0, 1):
        state = update.init(jax.random.PRNGKey(seed))
        for _ in range(3):
            state, output = update.update(state, jnp.float32(0.0))
            drawn.append(float(output.metrics["noise"]))
    assert len(set(drawn)) == 6


def test_an_impossible_period_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        make(policy_period=0)


REWARD = np.array([0.5, -1.0, 2.0], np.float32)
# Terminated, in mid-episode with gamma 0.9, truncated after two steps of gamma 0.9.
DISCOUNT = np.array([0.0, 0.9, 0.81], np.float32)


def test_action_value_errors_by_hand() -> None:
    q_tm1, q_t = np.array([2.0, 3.0, 0.0], np.float32), np.array([100.0, 4.0, -1.0], np.float32)
    errors = action_value_error(q_tm1, REWARD, DISCOUNT, q_t)
    np.testing.assert_allclose(errors, [0.5 - 2.0, -1 + 0.9 * 4 - 3, 2 + 0.81 * -1 - 0], rtol=1e-6)


def test_gradients_of_the_error_reach_the_predicted_value_only() -> None:
    def total(q_tm1: jax.Array, q_t: jax.Array) -> jax.Array:
        return jnp.sum(action_value_error(q_tm1, REWARD, DISCOUNT, q_t))

    by_q_tm1, by_q_t = jax.grad(total, argnums=(0, 1))(jnp.ones(3), jnp.ones(3))
    np.testing.assert_array_equal(by_q_tm1, -np.ones(3))
    assert not np.any(by_q_t)


def test_the_policys_loss_is_minus_its_actions_mean_value() -> None:
    loss = deterministic_policy_loss(lambda p, o: p * o, lambda c, o, a: c * o[:, 0] + a[:, 0] ** 2)
    data = Transition(np.float32([[1.0], [-2.0]]), None, None, None, None)
    found = jax.value_and_grad(loss)(jnp.float32(3.0), jnp.float32(0.5), ReplaySample((), data))
    np.testing.assert_allclose(found, (-(-0.25 + 9.0 * 2.5), -6.0 * 2.5), rtol=1e-6)


def test_with_adam_policy_and_critic_have_step_sizes_of_their_own() -> None:
    """Adam's first step is the step size, against the gradient's sign."""
    networks = PolicyCritic(Network(lambda key: jnp.float32(1.0), None), Network(lambda key: jnp.float32(2.0), None))
    update = adam_actor_critic(LOSSES, networks, (0.25, 0.125), polyak(0.1), policy_period=2)
    state, _ = update.update(update.init(KEY), jnp.float32(3.0))
    np.testing.assert_allclose(state.params, [1.0, 2.125], rtol=1e-5)
    state, _ = update.update(state, jnp.float32(3.0))
    np.testing.assert_allclose(state.params.policy, 1.25, rtol=1e-5)
