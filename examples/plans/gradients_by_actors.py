"""Gradients computed by actors, as in A3C (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning").

A worker acts, and differentiates the loss at the newest parameters it has. Gradients travel through a queue on a
Reverb server, which holds workers back when it is full; the learner applies them as they come.
"""
# ruff: noqa: D102 (the methods are those of `core.Agent`)

import argparse
import dataclasses

import haiku as hk
import jax
import jax.numpy as jnp
import rlax

from agentkit import actors, core, distributed, experiment, learning, networks, replay, specs, types
from agentkit.adders import NStepAdder
from agentkit.experiment import gradient_node, learner_node, nodes


@dataclasses.dataclass(frozen=True)
class A2C:
    """Advantage actor-critic with n-step returns, as a `core.Agent`: any plan can run it."""

    n: int = 10
    batch_plan = core.BatchPlan("steps", batch_size=20)
    config = property(lambda self: self)

    def make_networks(self, spec):
        size, dummy = spec.actions.num_values + 1, specs.zeros(spec.observations)[None]
        network = hk.without_apply_rng(hk.transform(lambda o: networks.q_values(o, size, (64,))))
        return hk.Transformed(lambda key: network.init(key, dummy), network.apply)  # [B, A + 1]: logits and value.

    def make_policy(self, networks, evaluation=False):
        def act(params, key, observation):
            logits = networks.apply(params, observation[None])[0, :-1]
            return (jnp.argmax(logits) if evaluation else jax.random.categorical(key, logits)).astype(jnp.int32)

        return actors.stateless_policy(act)

    def make_update(self, networks):
        def loss(params, _, batch, key):
            t = batch.data  # A Transition: its reward is the sum of n.
            output, weights = networks.apply(params, t.observation), jnp.ones_like(t.reward)
            target = t.reward + t.discount * networks.apply(params, t.next_observation)[:, -1]
            advantages = jax.lax.stop_gradient(target) - output[:, -1]  # [B]
            policy = rlax.policy_gradient_loss(output[:, :-1], t.action, advantages, weights)
            entropy = rlax.entropy_loss(output[:, :-1], weights)
            return types.LossOutput(policy + 0.5 * jnp.mean(advantages**2) + 0.01 * entropy, {})

        return learning.sgd(loss, networks.init, learning.adam(5e-3, max_grad_norm=1.0))

    def make_tables(self, spec):
        return [replay.queue_table("steps", NStepAdder.layout(spec), size=40)]

    def make_adder(self, replay, spec):
        return NStepAdder(replay.writer(NStepAdder.history(self.n)), spec, tables="steps", n=self.n, discount=0.99)


def main(num_steps: int = 25_000, num_workers: int = 3) -> None:
    """Trains on catch."""
    settings = {"num_steps": num_steps, "evaluation_period": num_steps, "evaluation_episodes": 50}
    config = experiment.ExperimentConfig(A2C(), "agentkit:catch", **settings)
    applied = dataclasses.replace(config, agent=gradient_node.with_gradients(config.agent))
    program = distributed.Program("A3C", experiment.make_roles(num_workers))
    queue = program.add_node("replay", nodes.replay_node, applied, None)
    learner = program.add_node("learner", learner_node.learner_node, applied, None, queue, publish_seconds=0.0)
    for _ in range(num_workers):
        program.add_node("actor", gradient_node.gradient_node, config, None, queue, learner)
    program.add_node("evaluator", nodes.evaluator_node, applied, None, learner)
    status = experiment.run_program(program)
    result = status["values"].get("evaluation", {}).get("episode_return")
    print(f"{status['stop']}: {status['totals']}; return {result} (1 is perfect)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=25_000)
    main(**vars(parser.parse_args()))
