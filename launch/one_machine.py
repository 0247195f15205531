"""All of this machine: a replay server, a learner, actors and an evaluator, each a process, supervised.

    python launch/one_machine.py --agent sac --env gymnasium:HalfCheetah-v5 --steps 1_000_000 --actors 8

`agentkit launch` does the same from the command line, with presets, and keeps the best policy. Copy this file where the
agent, its loss or the environment is your own code: the processes import this script as a module, so all that runs
stays under the last line's `if`.
"""

import argparse
import pathlib
import sys

import agentkit
from agentkit.agents import registry
from agentkit.loggers.program_table import ProgramTable


def main() -> int:
    """Begins the run, or goes on with it where the folder holds one."""
    parser = argparse.ArgumentParser(description="Trains with all of this machine.")
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--env", default="gymnasium:CartPole-v1")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps in all")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--evaluators", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=pathlib.Path, default=pathlib.Path("runs/one_machine"), help="the run folder")
    arguments = parser.parse_args()

    experiment = agentkit.ExperimentConfig(
        registry.make(arguments.agent),
        arguments.env,
        arguments.steps,
        seed=arguments.seed,
        run_directory=arguments.run,
        evaluation_period=max(arguments.steps // 10, 1),
        checkpoint_period=max(arguments.steps // 10, 1),
    )
    with ProgramTable() as table:
        result = agentkit.launch(
            experiment,
            num_actors=arguments.actors,
            num_evaluators=arguments.evaluators,
            resume=(arguments.run / "config.json").exists(),
            on_status=table.write,
        )
    print(f"{result.steps:,} steps, {result.updates:,} updates; the run is in {arguments.run}")
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
