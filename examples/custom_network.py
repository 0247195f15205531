"""A network of your own: `make_networks` builds it from the environment's spec and the agent's config.

An agent sees pure functions only (`networks.Network`): Haiku is this file's choice, and Flax, Equinox or plain
JAX would do as well. Here: a convolution over the board of catch, with layer normalisation.

    python examples/custom_network.py --num_steps 3000
"""

import argparse

import haiku as hk
import jax

import agentkit
from agentkit import networks, specs
from agentkit.agents import dqn
from agentkit.learning import Linear


class BoardNetwork(hk.Module):
    """Action values ``[B, A]`` of boards ``[B, rows, columns]``."""

    def __init__(self, num_actions: int, hidden_sizes: tuple[int, ...]):
        super().__init__()
        self._num_actions = num_actions
        self._hidden_sizes = hidden_sizes

    def __call__(self, board: jax.Array) -> jax.Array:
        """Convolution, layers, values."""
        x = jax.nn.relu(networks.Conv2D(8, kernel_shape=3, padding="VALID")(board[..., None]))  # [B, R-2, C-2, 8]
        x = hk.Flatten()(x)
        for size in self._hidden_sizes:
            x = jax.nn.relu(hk.LayerNorm(-1, create_scale=True, create_offset=True)(hk.Linear(size)(x)))
        return hk.Linear(self._num_actions)(x)


def make_networks(environment_spec: specs.EnvironmentSpec, config: dqn.Config) -> networks.Network:
    """Networks for `dqn.make_agent`, with the layers that the config asks for."""
    num_actions = environment_spec.actions.num_values
    network = hk.without_apply_rng(hk.transform(lambda o: BoardNetwork(num_actions, config.hidden_sizes)(o)))
    dummy = specs.zeros(environment_spec.observations)[None]  # Shapes only: [1, rows, columns].
    return networks.Network(init=lambda key: network.init(key, dummy), apply=network.apply)


def main(num_steps: int = 3_000, seed: int = 0) -> float:
    """Trains DQN with it on catch; the mean return of the last evaluation."""
    config = dqn.Config(
        hidden_sizes=(64,), min_replay_size=500, target_update_period=100, epsilon=Linear(1.0, 0.05, 1000)
    )

    agent = dqn.make_agent(config, make_networks=make_networks)

    experiment = agentkit.ExperimentConfig(
        agent, "agentkit:catch", num_steps, seed, evaluation_period=num_steps, evaluation_episodes=50
    )
    evaluation = agentkit.run(experiment).evaluations[-1]
    result = evaluation["episode_return"]
    print(f"DQN with a convolution after {evaluation['steps']} steps: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=3_000)
    main(**vars(parser.parse_args()))
