from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.actors import clipped_gaussian_policy, mode_policy, sampling_policy
from agentkit.networks import Categorical, DiagonalNormal

pytestmark = pytest.mark.both_stacks

KEYS = jax.random.split(jax.random.PRNGKey(0), 400)
OBSERVATION = np.float32([0.25, -3.0])


def _gaussian(params: Any, observation: Any) -> DiagonalNormal:
    """Around the observation, with the parameter as log deviation."""
    assert observation.shape == (1, 2)
    return DiagonalNormal(observation, jnp.full_like(observation, params))


def _actions(policy: Any, params: Any) -> np.ndarray:
    return np.asarray(jax.vmap(lambda key: policy.act(params, key, OBSERVATION, ())[0])(KEYS))


def test_a_gaussians_samples_are_clipped_and_spread_as_it_does() -> None:
    actions = _actions(clipped_gaussian_policy(_gaussian, evaluation=False), np.log(0.1))
    np.testing.assert_array_equal(actions[:, 1], np.full(len(KEYS), -1.0))
    np.testing.assert_allclose([actions[:, 0].mean(), actions[:, 0].std()], [0.25, 0.1], atol=0.02)


def test_in_evaluation_it_takes_the_mean_clipped_to_the_bounds() -> None:
    actions = _actions(clipped_gaussian_policy(_gaussian, evaluation=True), np.log(0.1))
    np.testing.assert_array_equal(actions, np.tile([0.25, -1.0], (len(KEYS), 1)).astype(np.float32))


def test_the_first_actions_are_uniform_and_the_others_samples() -> None:
    policy = sampling_policy(
        lambda logits, observation: Categorical(logits[None]),
        Categorical.sample,
        uniform=lambda key, observation: jnp.int32(2),
        num_random_steps=3,
    )
    state, actions = policy.init(KEYS[0]), []
    for key in KEYS[:8]:
        action, state, extras = policy.act(jnp.float32([0.0, -100.0, -100.0]), key, OBSERVATION, state)
        actions.append(int(action))
        assert extras == ()
    assert actions == [2] * 3 + [0] * 5


def test_the_likeliest_action_needs_no_key() -> None:
    policy = mode_policy(lambda logits, observation: Categorical(logits[None]), Categorical.mode)
    assert int(policy.act(jnp.float32([0.0, 2.0, 1.0]), KEYS[0], OBSERVATION, ())[0]) == 1
