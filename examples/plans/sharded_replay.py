"""Sharded replay: several replay servers, for more memory, network and inserts than one has.

Actor i writes to shard i modulo S; the learner draws its batches from all shards in turn, and priorities go back to
where a batch came from. Each shard keeps its own rate limit, so updates per insert are those of one server. A shard
that is empty or away is passed over.

    python examples/plans/sharded_replay.py --num_shards 2 --num_actors 2
"""

import argparse

from agentkit import distributed, experiment
from agentkit.agents import dqn
from agentkit.experiment.launching.nodes.actor import actor_node
from agentkit.experiment.launching.nodes.evaluator import evaluator_node
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import replay_node
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.learning import Linear
from agentkit.loggers.program_table import all_tables


def main(num_steps: int = 4_000, num_shards: int = 2, num_actors: int = 2) -> None:
    """Trains prioritised DQN on catch, and prints what each shard held and gave."""
    settings = dqn.Config(
        n_step=3, prioritized=True, min_replay_size=200, epsilon=Linear(1.0, 0.05, 1_000), target_update_period=100
    )
    config = experiment.ExperimentConfig(
        dqn.make_agent(settings), "agentkit:catch", num_steps, evaluation_period=num_steps, evaluation_episodes=50
    )
    spec = find_spec(config)

    program = distributed.Program("sharded replay", experiment.make_roles(num_actors))
    shards = [program.add_node("replay", replay_node, config, spec) for _ in range(num_shards)]
    learner = program.add_node("learner", learner_node, config, spec, shards)
    for i in range(num_actors):
        program.add_node("actor", actor_node, config, spec, shards[i % num_shards], learner)
    program.add_node("evaluator", evaluator_node, config, spec, learner)

    status = experiment.run_program(program)

    for name, table in all_tables(status).items():
        print(
            f"{name}: {table['size']} items; {table['num_sampled']} samples of {table['num_inserted']} inserts: "
            f"{table['samples_per_insert']:.1f} each, target {table['samples_per_insert_target']:.1f}"
        )
    result = status["values"].get("evaluation", {}).get("episode_return", float("nan"))
    print(f"{status['stop']}: return {result:.2f} (1 is perfect)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=4_000)
    parser.add_argument("--num_shards", type=int, default=2)
    parser.add_argument("--num_actors", type=int, default=2)
    main(**vars(parser.parse_args()))
