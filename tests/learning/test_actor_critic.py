"""Two quadratic bowls in place of networks: the critic falls to a target, the policy climbs to the critic."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.errors import ConfigError
from agentkit.learning import ActorCritic, ActorCriticLosses, deterministic_actor_critic, polyak
from agentkit.types import LossOutput

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
    init = ActorCritic(lambda key: jnp.float32(1.0), lambda key: jnp.float32(2.0))
    optimizers = ActorCritic(optax.sgd(0.5), optax.sgd(0.25))
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
