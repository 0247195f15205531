"""Prioritised replay on a real Reverb server: one switch of DQN, and one word of the experiment.

Schaul et al. 2016, "Prioritized Experience Replay": transitions are drawn in proportion to |TD error|^alpha,
and importance weights (exponent beta) undo part of the bias. The agent describes its table as plain data; the
word ``replay="reverb"`` puts that table on a Reverb server, ``"in_process"`` into numpy arrays.

Reverb runs on Linux with Python 3.11:  pip install '.[reverb]'

    python examples/prioritized_replay_on_reverb.py --num_steps 3000
"""

import argparse

import agentkit
from agentkit import envs, specs
from agentkit.agents import dqn
from agentkit.learning import Linear


def main(num_steps: int = 3_000, seed: int = 0, replay: str = "reverb") -> float:
    """Trains on catch with the table on `replay`; the mean return of the last evaluation."""
    config = dqn.Config(
        prioritized=True,
        priority_exponent=0.6,  # alpha
        importance_exponent=0.4,  # beta
        min_replay_size=500,
        target_update_period=100,
        epsilon=Linear(1.0, 0.05, 1_500),
    )
    agent = dqn.make_agent(config)

    for table in agent.make_tables(specs.make_environment_spec(envs.make("agentkit:catch"))):
        print(f"table {table.name!r}: sampler {table.sampler}, remover {table.remover}")

    experiment = agentkit.ExperimentConfig(
        agent,
        "agentkit:catch",
        num_steps,
        seed,
        replay=replay,
        evaluation_period=num_steps,
        evaluation_episodes=50,
    )
    evaluation = agentkit.run(experiment).evaluations[-1]
    result = evaluation["episode_return"]
    print(f"{replay} after {evaluation['steps']} steps: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=3_000)
    parser.add_argument("--replay", choices=["reverb", "in_process"], default="reverb")
    main(**vars(parser.parse_args()))
