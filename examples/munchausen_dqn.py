"""Munchausen-DQN: a new loss plugged into DQN in one line.

Vieillard, Pietquin & Geist 2020, "Munchausen Reinforcement Learning" (2007.14430), eq. 1: add the scaled
log-probability of the action taken to its reward, and bootstrap softly, with the policy softmax(q / tau).

A loss is a pure function ``(params, state, batch, key) -> LossOutput``; a `make_loss` builds it from
the agent's networks and config. Nothing is subclassed, and replay, actors and targets stay DQN's.

    python examples/munchausen_dqn.py --num_steps 4000
"""

import argparse

import jax
import jax.numpy as jnp

import agentkit
from agentkit import losses
from agentkit.agents import dqn
from agentkit.errors import ConfigError
from agentkit.learning import Linear
from agentkit.types import LossOutput

ALPHA, TAU, LEAST_LOG = 0.9, 0.03, -1.0  # Section 4 of the paper.


def munchausen_loss(networks, config):
    """`make_loss` for `dqn.make_agent`; the bonus is for one action, so it wants ``n_step=1``."""
    if config.n_step != 1:
        raise ConfigError(f"The Munchausen loss is for n_step=1, found {config.n_step}.")

    def loss(params, state, batch, key):
        t = batch.data  # A Transition; its discount has gamma in it already.
        q_tm1 = networks.apply(params, t.observation)  # [B, A]
        q_taken = jnp.take_along_axis(q_tm1, t.action[:, None], axis=-1)[:, 0]  # [B]

        # log pi = log softmax(q / tau), of the target network, before and after the step.
        log_pi_tm1 = jax.nn.log_softmax(networks.apply(state.target_params, t.observation) / TAU)
        bonus = jnp.take_along_axis(log_pi_tm1, t.action[:, None], axis=-1)[:, 0]  # [B]
        q_t = networks.apply(state.target_params, t.next_observation)
        log_pi_t = jax.nn.log_softmax(q_t / TAU)
        soft_value = jnp.sum(jnp.exp(log_pi_t) * (q_t - TAU * log_pi_t), axis=-1)  # [B]
        target = t.reward + ALPHA * jnp.clip(TAU * bonus, LEAST_LOG, 0.0) + t.discount * soft_value

        errors = jax.lax.stop_gradient(target) - q_taken
        return LossOutput(jnp.mean(losses.huber(errors, config.huber_delta)), {"q": jnp.mean(q_tm1)})

    return loss


def main(num_steps: int = 4_000, seed: int = 0) -> float:
    """Trains it on catch; the mean return of the last evaluation."""
    config = dqn.Config(n_step=1, min_replay_size=500, target_update_period=100, epsilon=Linear(1.0, 0.05, 1_500))

    agent = dqn.make_agent(config, make_loss=munchausen_loss)  # The one line.

    experiment = agentkit.ExperimentConfig(
        agent, "agentkit:catch", num_steps, seed, evaluation_period=num_steps, evaluation_episodes=50
    )
    evaluation = agentkit.run(experiment).evaluations[-1]
    result = evaluation["episode_return"]
    print(f"Munchausen-DQN after {evaluation['steps']} steps: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=4_000)
    main(**vars(parser.parse_args()))
