"""SAC whose critics' target is the mean of the two target critics, not the smaller one."""

import functools

import jax.numpy as jnp

from agentkit import networks as nets
from agentkit.agents import sac


def mean_target(networks, state, batch, key):
    """Returns the critics' targets ``[B]``."""
    o_t = batch.data.next_observation
    a_t, log_prob_t = nets.sample_and_log_prob(networks.policy.apply(state.policy, o_t), key)
    q_1, q_2 = (networks.critic.apply(target, o_t, a_t) for target in state.target_critics)
    v_t = 0.5 * (q_1 + q_2) - jnp.exp(state.log_alpha) * log_prob_t
    return batch.data.reward + batch.data.discount * v_t


def make_agent(config=sac.Config()):
    """Returns SAC with that target."""
    return sac.make_agent(config, make_losses=functools.partial(sac.make_losses, critic_target=mean_target))
