"""REINFORCE with a baseline: a whole new algorithm in one file, nothing changed inside agentkit.

Williams 1992, "Simple statistical gradient-following algorithms": ascend log pi(a) (G - v), with the value v learned
as the baseline. An agent is any object with the methods of `agentkit.core.Agent`: here on-policy, from a queue of
segments of which each is learned from once. Return G goes on beyond a segment's end by the value.

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
from agentkit.adders import SegmentAdder, segment_layout
from agentkit.core import BatchPlan
from agentkit.learning import adam, sgd
from agentkit.replay import queue_table
from agentkit.types import LossOutput, has_action


@dataclasses.dataclass(frozen=True)
class Config:
    """Rows of a segment, gamma, and Adam's step size."""

    length: int = 200
    discount: float = 0.99
    learning_rate: float = 3e-3


class Reinforce:
    """See `agentkit.core.Agent`."""

    config = Config()
    batch_plan = BatchPlan("segments", batch_size=1)

    def make_networks(self, spec):
        """Logits and, behind them, the value: ``[B, A + 1]``."""
        size = spec.actions.num_values + 1
        return nets.make_network(lambda x: nets.mlp(nets.torso(x), (64, 64), size), spec.observations)

    def make_policy(self, networks, evaluation=False):
        """Samples; in evaluation the likeliest action."""

        def act(params, key, observation, state):
            logits = networks.apply(params, observation[None])[0, :-1]
            action = jnp.argmax(logits) if evaluation else jax.random.categorical(key, logits)
            return action.astype(jnp.int32), state, ()

        return Policy(act)

    def make_update(self, networks):
        """A gradient step on each segment."""

        def loss(params, target_params, batch, key):
            steps = batch.data  # Leaves [1, T + 1, ...].
            outputs = jax.vmap(networks.apply, (None, 0))(params, steps.observation)
            log_pi, values = jax.nn.log_softmax(outputs[:, :-1, :-1]), outputs[..., -1]
            taken = jnp.take_along_axis(log_pi, steps.action[:, :-1, None], axis=-1)[..., 0]
            mask = has_action(steps.start_of_episode)  # An episode's final row has no action.
            advantages = jax.lax.stop_gradient(
                losses.generalized_advantages(  # With lambda = 1: G - v.
                    steps.reward[:, :-1], self.config.discount * steps.discount[:, :-1], values, mask, 1.0
                )
            )
            targets = advantages + jax.lax.stop_gradient(values[:, :-1])
            policy_loss = -losses.masked_mean(taken * losses.standardize(advantages, mask), mask)
            value_loss = losses.masked_mean(jnp.square(values[:, :-1] - targets), mask)
            return LossOutput(policy_loss + value_loss, {"value_loss": value_loss})

        return sgd(loss, networks.init, adam(self.config.learning_rate, max_grad_norm=1.0))

    def make_tables(self, spec):
        """A queue of one segment: what is learned from is as new as can be."""
        return [queue_table("segments", segment_layout(spec, self.config.length), size=1)]

    def make_adder(self, replay, spec):
        """Writes the segments."""
        return SegmentAdder(replay.writer(1), spec, tables="segments", length=self.config.length)


def main(num_steps: int = 30_000, seed: int = 0) -> float:
    """Trains it on catch; the mean return of the last evaluation."""
    experiment = agentkit.ExperimentConfig(
        Reinforce(), "agentkit:catch", num_steps, seed, evaluation_period=num_steps, evaluation_episodes=50
    )
    evaluation = agentkit.run(experiment).evaluations[-1]
    result = evaluation["episode_return"]
    print(f"REINFORCE after {evaluation['steps']} steps: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=30_000)
    main(**vars(parser.parse_args()))
