"""REINFORCE with a baseline: a whole new algorithm in one file, nothing changed inside agentkit.

Williams 1992, "Simple statistical gradient-following algorithms": ascend log pi(a) (G - v), with the value v learned
as the baseline. The algorithm is four functions; `make_agent` puts them into an `agentkit.Agent`, with a queue of
segments of which each is learned from once. The value stands for the rest of return G beyond a segment's end.

    python examples/reinforce_with_baseline.py --num_steps 30000
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp

import agentkit
from agentkit import losses
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents import Configured, Segments, SegmentsConfig, UpdateOfLoss
from agentkit.learning import adam, sgd
from agentkit.types import LossOutput, has_action


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Adds Adam's step size to the length of a segment, the batch size and gamma."""

    segment_length: int = 200
    learning_rate: float = 3e-3


def make_networks(environment_spec, config):
    """Builds the logits and, behind them, the value: ``[B, A + 1]``."""
    size = environment_spec.actions.num_values + 1
    return nets.make_network(lambda x: nets.mlp(nets.torso(x), (64, 64), size), environment_spec.observations)


def make_policy(networks, config, evaluation=False):
    """Samples; in evaluation takes the likeliest action."""

    def act(params, key, observation, state):
        logits = networks.apply(params, observation[None])[0, :-1]
        action = jnp.argmax(logits) if evaluation else jax.random.categorical(key, logits)
        return action.astype(jnp.int32), state, ()

    return Policy(act)


def make_loss(networks, config):
    """Builds the loss of policy and value on segments, leaves ``[B, T + 1, ...]``."""

    def loss(params, state, batch, key):
        steps = batch.data
        outputs = jax.vmap(networks.apply, (None, 0))(params, steps.observation)
        log_pi, values = jax.nn.log_softmax(outputs[:, :-1, :-1]), outputs[..., -1]
        taken = jnp.take_along_axis(log_pi, steps.action[:, :-1, None], axis=-1)[..., 0]
        mask = has_action(steps.start_of_episode)  # An episode's final row has no action.
        discounts = config.discount * steps.discount[:, :-1]
        advantages = losses.generalized_advantages(steps.reward[:, :-1], discounts, values, mask, 1.0)  # G - v.
        advantages = jax.lax.stop_gradient(advantages)
        targets = advantages + jax.lax.stop_gradient(values[:, :-1])
        policy_loss = -losses.masked_mean(taken * losses.standardize(advantages, mask), mask)
        value_loss = losses.masked_mean(jnp.square(values[:, :-1] - targets), mask)
        return LossOutput(policy_loss + value_loss, {"value_loss": value_loss})

    return loss


def make_update(networks, loss, config):
    """Takes a gradient step on each batch of segments."""
    return sgd(loss, networks.init, adam(config.learning_rate, max_grad_norm=1.0))


def make_agent(config=Config()):
    """Returns REINFORCE as an agent."""
    return agentkit.Agent(
        config,
        Segments(config),
        Configured(make_networks, config),
        Configured(make_policy, config),
        UpdateOfLoss(make_update, make_loss, config),
    )


def main(num_steps: int = 30_000, seed: int = 0) -> float:
    """Trains it on catch; returns the mean return of the last evaluation."""
    experiment = agentkit.ExperimentConfig(
        make_agent(), "agentkit:catch", num_steps, seed, evaluation_period=num_steps, evaluation_episodes=50
    )
    evaluation = agentkit.run(experiment).evaluations[-1]
    result = evaluation["episode_return"]
    print(f"REINFORCE after {evaluation['steps']} steps: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=30_000)
    main(**vars(parser.parse_args()))
