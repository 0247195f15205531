"""A torso of your own, as a Flax module: the rest of the agent stays as it is.

`torso=` turns an observation into features, in front of the agent's own layers. It is the same argument for every
agent; a function, a Haiku module's class and an Equinox module (equinox_torso.py) will do as well. A run is resumed
from its folder if the module's class is in a file that can be imported. Needs the extra `flax`.

    python examples/flax_torso.py --num_steps 2000
"""

import argparse

import flax.linen as nn
import jax

import agentkit
from agentkit import networks
from agentkit.agents import dqn
from agentkit.learning import Linear


class BoardTorso(nn.Module):
    """Features ``[B, D]`` of boards ``[B, rows, columns]``, by a convolution and a normalised layer."""

    num_features: int = 64

    @nn.compact
    def __call__(self, board: jax.Array) -> jax.Array:
        """Convolution, layer, normalisation."""
        x = nn.relu(nn.Conv(8, (3, 3), padding="VALID")(board[..., None]))  # [B, R-2, C-2, 8]
        return nn.relu(nn.LayerNorm()(nn.Dense(self.num_features)(x.reshape(x.shape[0], -1))))


def make_agent() -> agentkit.Agent:
    """DQN with that torso."""
    config = dqn.Config(
        hidden_sizes=(64,), min_replay_size=500, target_update_period=100, epsilon=Linear(1.0, 0.05, 1000)
    )
    return dqn.make_agent(config, torso=networks.from_flax(BoardTorso()))


def main(num_steps: int = 2_000, seed: int = 0) -> float:
    """Trains it on catch; the mean return of the last evaluation."""
    experiment = agentkit.ExperimentConfig(
        make_agent(), "agentkit:catch", num_steps, seed, evaluation_period=num_steps, evaluation_episodes=50
    )
    evaluation = agentkit.run(experiment).evaluations[-1]
    result = evaluation["episode_return"]
    print(f"DQN with a Flax torso after {evaluation['steps']} steps: return {result:.2f} (1 is perfect)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=2_000)
    main(**vars(parser.parse_args()))
