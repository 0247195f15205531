"""A launched program whose environments sleep while there is a certain file: RUN_FOLDER FILE STEPS."""

import pathlib
import sys
import time

from agentkit.agents import registry
from agentkit.envs import make
from agentkit.experiment import ExperimentConfig, launch
from agentkit.wrappers.base import EnvironmentWrapper
from tests.experiment.launched import REPLAY

SETTINGS = {"min_replay_size": 50, "updates_per_step": 0.1, "hidden_sizes": (16,), "batch_size": 16}


def main(run, bed, steps):
    def sleep(environment):
        class Sleepy(EnvironmentWrapper):
            def step(self, action):
                while pathlib.Path(bed).exists():
                    time.sleep(0.2)
                return self._environment.step(action)

        return Sleepy(environment)

    experiment = ExperimentConfig(
        registry.make("dqn", SETTINGS),
        lambda seed: make("agentkit:catch", seed, wrappers=[sleep]),
        num_steps=steps,
        run_directory=run,
        evaluation_period=0,
        checkpoint_period=200,
        replay=REPLAY,
    )
    result = launch(experiment, num_actors=1, num_evaluators=0)
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
