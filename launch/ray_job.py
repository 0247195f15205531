r"""A run on a Ray cluster that is up already: each node goes to a machine that has the CPUs its role asks for.

On the cluster's head, or on any machine that has joined it (launch/ray_cluster.yaml starts one):

    export RAY_AUTH_TOKEN=...      # the cluster's; or RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token
    python launch/ray_job.py --address HEAD:6379 --listen eth0 --agent sac --env gymnasium:HalfCheetah-v5 \
        --steps 1_000_000 --actors 32 --run /shared/runs/cheetah

Run the same command again to go on after a stop or a fault. The run folder must be on a disk that all machines
share: checkpoints and logs are written where their node runs. --listen names the device of the cluster's private
network. agentkit's servers there are encrypted, and let in who has the run's secret; Ray brings it to the nodes,
unencrypted unless Ray's TLS is set up. Reverb's server (--replay reverb) has no password.
"""

import argparse
import pathlib
import sys

import agentkit
from agentkit.agents import registry
from agentkit.loggers.program_table import ProgramTable


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains on a Ray cluster.")
    parser.add_argument("--address", required=True, metavar="HOST:PORT", help="of the cluster's head; never 'auto'")
    parser.add_argument("--listen", required=True, help="network device of servers: eth0, ...; lo where all is here")
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--env", default="gymnasium:CartPole-v1")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps in all")
    parser.add_argument("--replay", choices=("served", "reverb"), default="served", help="default: served")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--evaluators", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=pathlib.Path, default=pathlib.Path("runs/ray_job"), help="on a shared disk")
    return parser.parse_args()


def main() -> int:
    """Begins the run, or goes on with it where the folder holds one."""
    arguments = parse()
    experiment = agentkit.ExperimentConfig(
        registry.make(arguments.agent),
        arguments.env,
        arguments.steps,
        seed=arguments.seed,
        replay=arguments.replay,
        run_directory=arguments.run,
        evaluation_period=max(arguments.steps // 10, 1),
        checkpoint_period=max(arguments.steps // 10, 1),
    )
    with ProgramTable() as table:
        result = agentkit.launch(
            experiment,
            num_actors=arguments.actors,
            num_evaluators=arguments.evaluators,
            engine="ray",
            ray_address=arguments.address,
            listen=arguments.listen,
            resume=(arguments.run / "config.json").exists(),
            on_status=table.write,
        )
    print(f"{result.steps:,} steps, {result.updates:,} updates; the run is in {arguments.run}")
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
