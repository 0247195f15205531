"""What SAC's relatives share: the temperature, soft targets, and whose parameters a step is taken with."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.errors import ConfigError
from agentkit.learning import PolicyCritic, SoftLosses, Temperature, polyak, soft_actor_critic, soft_target
from agentkit.learning.soft import temperature_gradient
from agentkit.types import LossOutput, ReplaySample

KEY = jax.random.PRNGKey(0)


def _update(policy_period=1, target_entropy=-1.0, rate=0.1):
    """The critic's loss is c * (target critic + policy), the policy's is p * critic * alpha; entropy is the policy."""

    def critic_loss(critics, bootstrap, batch, key):
        loss = jnp.sum(critics) * (jnp.sum(bootstrap.critics) + bootstrap.policy * bootstrap.temperature)
        return LossOutput(loss, {"q": jnp.sum(critics)})

    def policy_loss(policy, critics, temperature, batch, key):
        return policy * jnp.sum(critics) * temperature, -policy

    init = PolicyCritic(lambda key: jnp.float32(2.0), lambda keys: jnp.arange(1.0, len(keys) + 1.0))
    return soft_actor_critic(
        SoftLosses(critic_loss, policy_loss),
        init,
        num_critics=2,
        optimizer=optax.sgd(rate),
        target_update=polyak(0.5),
        temperature=Temperature(0.5, target_entropy),
        policy_period=policy_period,
    )


def test_an_update_by_hand():
    """All three gradients are taken at the parameters before the update; targets follow the new critics."""
    update = _update()
    state, output = update.update(update.init(KEY), ReplaySample((), ()))
    critics = np.array([1.0, 2.0]) - 0.1 * (3.0 + 2.0 * 0.5)
    np.testing.assert_allclose(state.critics, critics, rtol=1e-6)
    np.testing.assert_allclose(state.target_critics, 0.5 * (np.array([1.0, 2.0]) + critics), rtol=1e-6)
    np.testing.assert_allclose(state.policy, 2.0 - 0.1 * 3.0 * 0.5, rtol=1e-6)
    # Entropy 2 is above the target, -1: the temperature falls, by the rate times the difference in its logarithm.
    np.testing.assert_allclose(state.log_temperature, np.log(0.5) - 0.1 * 3.0, rtol=1e-6)
    found = {name: float(x) for name, x in output.metrics.items()}
    assert found == pytest.approx(
        {"critic_loss": 12.0, "q": 3.0, "policy_loss": 3.0, "entropy": 2.0, "temperature": 0.5}
    )


def test_without_a_target_entropy_the_temperature_stays():
    update = _update(target_entropy=None)
    state = update.init(KEY)
    for _ in range(3):
        state, _ = update.update(state, ReplaySample((), ()))
    assert state.log_temperature == np.log(np.float32(0.5))


def test_a_period_leaves_policy_and_temperature_in_between():
    update = _update(policy_period=3)
    states = [update.init(KEY)]
    metrics = []
    for _ in range(6):
        state, output = update.update(states[-1], ReplaySample((), ()))
        states.append(state)
        metrics.append(output.metrics)
    for name in ("policy", "log_temperature"):
        values = np.array([getattr(state, name) for state in states])
        assert np.all((np.diff(values) != 0) == [False, False, True] * 2), name
    assert np.all(np.diff([float(state.critics[0]) for state in states]) != 0)
    entropies = [float(x["entropy"]) for x in metrics]
    assert entropies[:3] == [0.0, 0.0, 2.0] and entropies[3:5] == [2.0, 2.0] != entropies[4:]
    assert np.isclose(metrics[2]["policy_loss"], 2.0 * float(jnp.sum(states[2].critics)) * 0.5)


def test_the_temperatures_gradient_is_that_of_its_loss():
    def loss(log_alpha):
        return jnp.mean(-log_alpha * (jnp.array([-0.2, 0.6]) - 1.5))

    np.testing.assert_allclose(temperature_gradient(jnp.float32(0.2), -1.5), jax.grad(loss)(0.3), rtol=1e-6)


def test_soft_targets_by_hand_and_without_a_gradient():
    r, discount, q, log_prob = (np.float32(x) for x in ([1, 2], [0.5, 0.0], [4, 9], [-3, 7]))
    np.testing.assert_allclose(soft_target(r, discount, q, log_prob, np.float32(0.2)), [1 + 0.5 * 4.6, 2.0], rtol=1e-6)
    assert not np.any(jax.grad(lambda q: jnp.sum(soft_target(r, discount, q, log_prob, 0.2)))(q))


def test_a_period_of_less_than_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        _update(policy_period=0)
