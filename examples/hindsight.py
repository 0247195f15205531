"""Hindsight experience replay: DQN on a task that says nothing until it is solved, with hindsight and without.

Andrychowicz et al. 2017 (1707.01495), section 3.1: flip bits, one a step, until a word equals the goal. Each step
costs 1, and 2**num_bits words are too many for chance. With hindsight each step is also stored with goals that its
episode achieved later (`agentkit.adders.HindsightAdder`), and those are met often.

    python examples/hindsight.py --num_steps 6000 --num_bits 10
"""

import argparse

import agentkit
from agentkit.adders import Hindsight
from agentkit.agents import dqn
from agentkit.agents.addons import with_her
from agentkit.envs.reach_goal import BitFlip
from agentkit.learning import Linear


def make_agent(num_steps: int, num_relabelled: int):
    """DQN with so many more goals for each step; one update a step, however many items that makes."""
    config = dqn.Config(
        n_step=1,  # Hindsight relabels single steps.
        discount=0.98,
        hidden_sizes=(256,),
        batch_size=64,
        updates_per_step=1 / (1 + num_relabelled),  # Of replay's items, which are 1 + num_relabelled a step.
        min_replay_size=500,
        target_update_period=100,
        epsilon=Linear(1.0, 0.1, num_steps // 3),
    )
    hindsight = Hindsight(
        BitFlip.compute_reward,
        BitFlip.compute_terminated,  # The goal ends the episode: so it does in hindsight.
        num_relabelled=num_relabelled,
    )
    return with_her(dqn.make_agent(config), hindsight)


def train(num_relabelled: int, num_steps: int, num_bits: int, seed: int) -> float:
    """The mean return of the last evaluation."""
    experiment = agentkit.ExperimentConfig(
        make_agent(num_steps, num_relabelled),
        lambda seed: BitFlip(num_bits, seed),
        num_steps,
        seed,
        evaluation_period=num_steps,
        evaluation_episodes=50,
    )
    return agentkit.run(experiment).evaluations[-1]["episode_return"]


def main(num_steps: int = 6_000, num_bits: int = 10, seed: int = 0) -> tuple[float, float]:
    """Trains both; their mean returns, without hindsight and with it."""
    without = train(0, num_steps, num_bits, seed)
    print(f"DQN after {num_steps} steps of {num_bits} bits: return {without:.2f} ({-num_bits} is never)")
    hindsight = train(4, num_steps, num_bits, seed)
    print(f"With hindsight after {num_steps} steps: return {hindsight:.2f} ({1 - num_bits / 2:.2f} is perfect)")
    return without, hindsight


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=6_000)
    parser.add_argument("--num_bits", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
