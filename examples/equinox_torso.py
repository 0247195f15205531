"""A torso of your own, as an Equinox module: the rest of the agent stays as it is.

Equinox modules are for one observation, and need its size and a key to be made: `networks.from_equinox` takes the
function that makes yours, and applies it to batches. Needs the extra `equinox`.

    python examples/equinox_torso.py --num_steps 2000
"""

import argparse

import equinox as eqx
import jax

import agentkit
from agentkit import networks
from agentkit.agents import dqn
from agentkit.learning import Linear


class BoardTorso(eqx.Module):
    """Features ``[D]`` of a board ``[rows, columns]``, by a convolution and a normalised layer."""

    convolution: eqx.nn.Conv2d
    layer: eqx.nn.Linear
    normalise: eqx.nn.LayerNorm

    def __init__(self, board: jax.ShapeDtypeStruct, key: jax.Array, num_features: int = 64):
        rows, columns = board.shape
        one, other = jax.random.split(key)
        self.convolution = eqx.nn.Conv2d(1, 8, kernel_size=3, key=one)
        self.layer = eqx.nn.Linear(8 * (rows - 2) * (columns - 2), num_features, key=other)
        self.normalise = eqx.nn.LayerNorm(num_features)

    def __call__(self, board: jax.Array) -> jax.Array:
        """Convolution, layer, normalisation."""
        x = jax.nn.relu(self.convolution(board[None]))  # [8, R-2, C-2]
        return jax.nn.relu(self.normalise(self.layer(x.reshape(-1))))


def make_agent() -> agentkit.Agent:
    """DQN with that torso."""
    config = dqn.Config(
        hidden_sizes=(64,), min_replay_size=500, target_update_period=100, epsilon=Linear(1.0, 0.05, 1000)
    )
    return dqn.make_agent(config, torso=networks.from_equinox(BoardTorso))


def main(num_steps: int = 2_000, seed: int = 0) -> float:
    """Trains it on catch; the mean return of the last evaluation."""
    experiment = agentkit.ExperimentConfig(
        make_agent(), "agentkit:catch", num_steps, seed, evaluation_period=num_steps, evaluation_episodes=50
    )
    evaluation = agentkit.run(experiment).evaluations[-1]
    result = evaluation["episode_return"]
    print(f"DQN with an Equinox torso after {evaluation['steps']} steps: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=2_000)
    main(**vars(parser.parse_args()))
