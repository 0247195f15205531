"""DQN composed by hand: every box of agentkit once, without an agent or an experiment.

environment -> actor -> adder -> replay -> dataset -> learner -> variables -> actor: swap any for your own. Where the
loop works, `agentkit.compose` makes an agent of the same functions: docs/compose_an_agent.md.
"""

import argparse
from contextlib import closing

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import envs, losses, networks, specs
from agentkit.actors import ActorIndex, PolicyActor, stateless_policy
from agentkit.adders import NStepAdder, NullAdder
from agentkit.core import ActorParts, BatchPlan, LearnerParts
from agentkit.datasets import ReplayDataset
from agentkit.environment_loop import EnvironmentLoop
from agentkit.learning import Learner, adam, periodic, rate_limit, sgd
from agentkit.replay import InProcessReplay, Table
from agentkit.types import LossOutput
from agentkit.variables import VariableClient, VariableStore

PLAN = BatchPlan("transitions", batch_size=64)


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


def make_tables(spec):
    """Replay, as data; the rate limit says whose turn it is."""
    limit = rate_limit(PLAN, updates_per_insert=1.0, min_replay_size=500)
    return [Table("transitions", NStepAdder.layout(spec), max_size=10_000, rate_limiter=limit)]


def make_adder(replay, spec):
    """From steps to transitions in replay."""
    return NStepAdder(replay, spec, tables="transitions", n=1, discount=0.99)


def make_actor(parts):
    """Acts, to explore or to be judged by."""
    explore, greedy, _ = make_mathematics(parts.environment_spec)
    policy = greedy if parts.evaluation else explore
    index = ActorIndex(parts.actor_id, parts.num_actors, parts.num_steps)
    return PolicyActor(policy, jax.random.PRNGKey(parts.seed), parts.variables, parts.adder, index)


def make_learner(parts):
    """Learns from batches."""
    _, _, update = make_mathematics(parts.environment_spec)
    return Learner(update, parts.dataset, jax.random.PRNGKey(parts.seed))


def main(num_steps: int = 4_000, seed: int = 0) -> float:
    """Trains for `num_steps` steps; the mean return of 50 greedy episodes."""
    environment = envs.make("agentkit:catch", seed=seed)
    spec = specs.make_environment_spec(environment)
    replay = InProcessReplay(make_tables(spec), seed=seed)
    adder, variables = make_adder(replay, spec), VariableStore()
    with replay, closing(ReplayDataset(replay, PLAN)) as dataset, closing(adder):
        learner = make_learner(LearnerParts(spec, dataset, seed))
        variables.publish(0, learner.variables())
        actor = make_actor(ActorParts(spec, adder, VariableClient(variables), seed + 1))
        loop = EnvironmentLoop(environment, actor)
        while loop.num_steps < num_steps:
            loop.step()  # The actor acts, the adder writes.
            while dataset.ready():
                learner.step()  # One batch, one update.
                variables.publish(learner.num_updates_done, learner.variables())
            actor.update()  # Fetches the newest parameters.

    judge = make_actor(ActorParts(spec, NullAdder(), VariableClient(variables), seed + 2, evaluation=True))
    result = sum(episode["episode_return"] for episode in EnvironmentLoop(environment, judge).run(num_episodes=50)) / 50
    print(f"{num_steps} steps, {learner.num_updates_done} updates: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_steps", type=int, default=4_000)
    main(**vars(parser.parse_args()))
