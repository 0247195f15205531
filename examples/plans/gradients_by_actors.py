"""Gradients computed by actors, as in A3C (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning").

A worker acts, and differentiates A2C's loss at the newest parameters it has. Gradients travel through a queue on a
replay server, which holds workers back when it is full; the learner applies them as they come. Nothing is normalised
by running statistics, as in the paper: workers know no more than the parameters.
"""

import argparse
import dataclasses

from agentkit import distributed, experiment
from agentkit.agents import a2c
from agentkit.experiment.launching.nodes.gradient_actor import with_gradients


def main(num_steps: int = 60_000, num_workers: int = 3) -> None:
    """Trains on catch."""
    settings = {"num_steps": num_steps, "evaluation_period": num_steps, "evaluation_episodes": 50}
    agent = a2c.make_agent(
        a2c.Config(
            segment_length=10,
            batch_size=2,
            learning_rate=1e-3,
            normalize_observations=False,
            normalize_values=False,
        )
    )
    config = experiment.ExperimentConfig(agent, "agentkit:catch", **settings)
    applied = dataclasses.replace(config, agent=with_gradients(config.agent))
    program = distributed.Program("A3C", experiment.make_roles(num_workers))
    queue = program.add_node("replay", experiment.replay_node, applied, None)
    learner = program.add_node("learner", experiment.learner_node, applied, None, queue, publish_seconds=0.0)
    for _ in range(num_workers):
        program.add_node("actor", experiment.gradient_node, config, None, queue, learner)
    program.add_node("evaluator", experiment.evaluator_node, applied, None, learner)
    status = experiment.run_program(program)
    result = status["values"].get("evaluation", {}).get("episode_return")
    print(f"{status['stop']}: {status['totals']}; return {result} (1 is perfect)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=60_000)
    main(**vars(parser.parse_args()))
