import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.actors import Policy, stateless_policy

pytestmark = pytest.mark.both_stacks


def test_a_feed_forward_policy_has_neither_state_nor_extras() -> None:
    policy = stateless_policy(lambda params, key, observation: observation * params)
    assert policy.init(jax.random.PRNGKey(0)) == ()
    action, state, extras = policy.act(2.0, jax.random.PRNGKey(0), jnp.ones(3), ())
    np.testing.assert_array_equal(action, 2 * np.ones(3))
    assert state == () and extras == ()


def test_reset_keeps_the_state_unless_told_otherwise() -> None:
    policy = Policy(act=lambda params, key, observation, state: (observation, state, ()))
    assert policy.reset({"core": 3}) == {"core": 3}
