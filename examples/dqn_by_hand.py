"""DQN composed by hand: every box of agentkit once, without `agentkit.agents` or `agentkit.experiment`.

environment -> actor -> adder -> replay -> dataset -> learner -> variables -> actor: swap any for your own.
"""

import argparse
from contextlib import closing

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import envs, losses, networks, specs
from agentkit.actors import PolicyActor, stateless_policy
from agentkit.adders import NStepAdder
from agentkit.core import BatchPlan
from agentkit.datasets import ReplayDataset
from agentkit.environment_loop import EnvironmentLoop
from agentkit.learning import Learner, LearnerCallbacks, adam, periodic, rate_limit, sgd
from agentkit.replay import InProcessReplay, Table
from agentkit.types import LossOutput
from agentkit.variables import VariableClient, VariableStore


def make_mathematics(spec: specs.EnvironmentSpec):
    """All that is pure: the policy to explore with, the one to be judged by, and the update."""
    size, dummy = spec.actions.num_values, specs.zeros(spec.observations)[None]
    network = hk.without_apply_rng(hk.transform(lambda o: networks.q_values(o, size, (64, 64))))

    def greedy(params, key, observation):
        return jnp.argmax(network.apply(params, observation[None])[0]).astype(jnp.int32)

    def explore(params, key, observation):  # Epsilon-greedy, epsilon = 0.2.
        coin, which = jax.random.uniform(key, (2,))
        return jnp.where(coin < 0.2, (which * size).astype(jnp.int32), greedy(params, key, observation))

    def loss(params, state, batch, key):
        t = batch.data  # A Transition; its discount has gamma in it already.
        q_tm1, q_t = network.apply(params, t.observation), network.apply(state.target_params, t.next_observation)
        errors = losses.q_learning_error(q_tm1, t.action, t.reward, t.discount, q_t)  # [B]
        return LossOutput(jnp.mean(losses.huber(errors, 1.0)), {"q": jnp.mean(q_tm1)})

    update = sgd(loss, lambda key: network.init(key, dummy), adam(1e-3), periodic(100))
    return stateless_policy(explore), stateless_policy(greedy), update


def main(num_steps: int = 4_000, seed: int = 0) -> float:
    """Trains for `num_steps` steps; the mean return of 50 greedy episodes."""
    environment = envs.make("agentkit:catch", seed=seed)
    spec = specs.make_environment_spec(environment)
    explore, greedy, update = make_mathematics(spec)
    learner_key, actor_key, judge_key = jax.random.split(jax.random.PRNGKey(seed), 3)

    plan = BatchPlan("transitions", batch_size=64)
    limit = rate_limit(plan, updates_per_insert=1.0, min_replay_size=500)  # Says whose turn it is.
    table = Table("transitions", NStepAdder.layout(spec), max_size=10_000, rate_limiter=limit)
    replay = InProcessReplay([table], seed=seed)
    adder = NStepAdder(replay, spec, tables="transitions", n=1, discount=0.99)
    variables = VariableStore()
    with replay, closing(ReplayDataset(replay, plan)) as dataset, closing(adder):
        learner = Learner(update, dataset, learner_key, callbacks=LearnerCallbacks(publisher=variables))
        actor = PolicyActor(explore, actor_key, VariableClient(variables), adder)
        loop = EnvironmentLoop(environment, actor)
        while loop.num_steps < num_steps:
            loop.step()  # The actor acts, the adder writes.
            while dataset.ready():
                learner.step()  # One batch, one update; publishes the parameters.
            actor.update()  # Fetches them.

    judge = EnvironmentLoop(environment, PolicyActor(greedy, judge_key, VariableClient(variables)))
    result = sum(episode["episode_return"] for episode in judge.run(num_episodes=50)) / 50
    print(f"{num_steps} steps, {learner.num_updates_done} updates: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_steps", type=int, default=4_000)
    main(**vars(parser.parse_args()))
