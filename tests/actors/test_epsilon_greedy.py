import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.actors import epsilon_greedy_policy, explore
from agentkit.actors.step_count import steps_taken

pytestmark = pytest.mark.both_stacks

KEYS = jax.random.split(jax.random.PRNGKey(0), 20_000)
Q = jnp.array([0.0, 3.0, 1.0])


@pytest.mark.parametrize(("epsilon", "best"), [(0.0, 1.0), (0.3, 0.8), (1.0, 1 / 3)])
def test_the_best_action_and_with_probability_epsilon_any(epsilon: float, best: float) -> None:
    actions = np.asarray(jax.vmap(lambda key: explore(key, Q, epsilon))(KEYS))
    assert actions.dtype == np.int32
    share = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(share, [(1 - best) / 2, best, (1 - best) / 2], atol=0.015)


@pytest.mark.full
def test_the_policy_counts_its_steps_and_explores_by_them() -> None:
    policy = epsilon_greedy_policy(
        lambda params, observation: params + observation[:, :1], lambda t: jnp.where(t < 3, 1.0, 0.0)
    )
    state, actions = policy.init(KEYS[0]), []
    for t in range(30):
        action, state, extras = policy.act(Q[None], KEYS[t], jnp.ones(4), state)
        assert extras == () and state.dtype == jnp.int32
        actions.append(int(action))
    assert steps_taken(state) == 30 and set(actions[3:]) == {1}


def test_an_epsilon_that_is_a_number_stays() -> None:
    for epsilon, expected in ((0.0, 0.0), (1.0, 2 / 3)):
        policy = epsilon_greedy_policy(lambda params, observation: params + observation[:, :1], epsilon)
        act = jax.vmap(lambda key, of=policy: of.act(Q[None], key, jnp.ones(4), of.init(key))[0])
        assert np.mean(np.asarray(act(KEYS)) != 1) == pytest.approx(expected, abs=0.02)
