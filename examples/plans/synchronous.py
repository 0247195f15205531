"""Synchronous or asynchronous: one program, two rate limits.

`Lockstep` lets exactly K updates follow each insert, and no insert come before them; the actor waits until it has
the parameters of all updates due. Agents by themselves have an error buffer of a thousand inserts: nobody waits for
long, the ratio is the same in the long run, and parameters are older.

    python examples/plans/synchronous.py
"""

import argparse
import dataclasses

import jax

from agentkit import actors, distributed, experiment, variables
from agentkit.agents import dqn
from agentkit.agents.common.experience_wrappers import WithRateLimiter
from agentkit.environment_loop import EnvironmentLoop
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import connect_to_replay, replay_node
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.experiment.launching.sharing.transports import make_source
from agentkit.replay import Lockstep

K, BATCH, FIRST = 2, 32, 100  # Updates per insert, items per update, items before the first update.


def act(context, config, spec, replay, learner, wait):
    """The environment loop, with or without waiting for the learner; reports how far behind it acted."""
    agent, worst, total = config.agent, 0, 0
    with connect_to_replay(agent.make_tables(spec), replay, timeout=60.0, wait=60.0) as connected:
        client = variables.VariableClient(make_source(context, learner))
        policy, key = agent.make_policy(agent.make_networks(spec)), jax.random.PRNGKey(config.seed)
        actor = actors.PolicyActor(policy, key, client, agent.make_adder(connected, spec))
        loop = EnvironmentLoop(config.make_environment(config.seed), actor)
        client.update(wait=True)
        context.ready()
        while not context.should_stop:
            loop.step()
            client.update()
            due = K * max(0, connected.info(agent.batch_plan.table).num_inserted - FIRST + 1)
            while wait and client.version < due and not context.wait(0.0005):
                client.update()
            if not context.should_stop:
                behind = max(0, due - client.version)  # Updates that the next action's parameters lack.
                worst, total = max(worst, behind), total + behind
                context.gauge(worst=worst, mean=total / loop.num_steps)
            context.heartbeat(steps=loop.num_steps)
        actor.close()


def run(name, agent, num_steps, wait):
    """Runs one of the two and prints what was seen."""
    config = experiment.ExperimentConfig(agent, "agentkit:catch", num_steps, evaluation_period=0)
    spec = find_spec(config)
    program = distributed.Program(name, experiment.make_roles(num_actors=1))
    replay = program.add_node("replay", replay_node, config, spec)
    learner = program.add_node("learner", learner_node, config, spec, replay, publish_seconds=0.0)
    program.add_node("actor", act, config, spec, replay, learner, wait)
    status = experiment.run_program(program)
    table, lag = status["values"]["tables"][agent.batch_plan.table], status["nodes"]["actor-0"]["gauges"]
    ratio = table["num_sampled"] / max(table["num_inserted"] - FIRST + 1, 1)
    print(f"{name:12} ({status['stop']}): {ratio:.2f} samples per insert, target {K * BATCH}; the actor's parameters")
    print(f"{'':12} lacked {lag.get('mean', 0.0):.1f} updates on average, {lag.get('worst', 0):.0f} at worst")


def main(num_steps: int = 300) -> None:
    """Both, one after the other."""
    agent = dqn.make_agent(dqn.Config(n_step=1, batch_size=BATCH, updates_per_step=K, min_replay_size=FIRST))
    lockstep = dataclasses.replace(agent, experience=WithRateLimiter(agent.experience, Lockstep(K * BATCH, FIRST)))
    run("synchronous", lockstep, num_steps, wait=True)
    run("asynchronous", agent, num_steps, wait=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=300)
    main(**vars(parser.parse_args()))
